//! `porch-fn images`: the images that this machine has for `up` and `run`.

mod client;
pub(crate) mod flags;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use jiff::Timestamp;
use porch_fn_flags::GoDuration;
use porch_fn_image::Image;
use porch_fn_images::{ImageInfo, Record, Store, StoreError};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

pub(crate) use self::client::{client, log_causes, pull};
use self::flags::RegistryArgs;
use crate::failure::Failure;
use crate::output::{Output, show, table};
use crate::porch_config::CATALOG;

/// Flags of all commands that name images themselves.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sandboxes")]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) registries: RegistryArgs,
    /// Prefix for images without a registry
    #[arg(long, value_name = "PREFIX", default_value = CATALOG)]
    pub(crate) default_image_prefix: String,
}

#[derive(Debug, clap::Args)]
#[command(mut_args(|arg| arg.global(true)))]
pub(crate) struct ImagesArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    args: StoreArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the images of this machine
    List {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Pull images, also if they are here: a tag may have moved
    Pull {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Read images from an archive of docker save, podman save, skopeo or porch-fn images export
    Import {
        /// The archive; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Name of the image, instead of the names in the archive
        #[arg(long = "as", value_name = "IMAGE")]
        name: Option<String>,
    },
    /// Write an image to an OCI archive
    Export {
        /// The image
        image: String,
        /// The archive; - writes to standard output
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print what is known about an image, as JSON
    Inspect {
        /// The image
        image: String,
    },
    /// Remove images
    Rm {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Remove images that are not in use
    Prune {
        /// Keep images that were used in this time
        #[arg(long, value_name = "DURATION", default_value = "0s")]
        unused_for: GoDuration,
    },
}

pub(crate) async fn run(ImagesArgs { action, args }: ImagesArgs) -> Result<ExitCode, Failure> {
    let store = args.registries.open()?;
    match action {
        Action::List { output } => list(&store, output)?,
        Action::Pull { images } => {
            log_causes();
            for image in images {
                let image = args.image(&image)?;
                pull(&store, &args.registries, &image).await?.map_err(|error| of_image(&image, error))?;
                show(&format!("{}\n", image.as_str()));
            }
        }
        Action::Import { file, name } => {
            let name = name.map(|name| args.image(&name)).transpose()?;
            for image in store.import(archive(&file)?, name.as_ref()).await? {
                show(&format!("{}\n", image.as_str()));
            }
        }
        Action::Export { image, file } => {
            let image = args.image(&image)?;
            spawn_blocking(move || export(&store, &image, &file)).await??;
        }
        Action::Inspect { image } => {
            let image = args.image(&image)?;
            let found = store.inspect(&image)?.ok_or_else(|| of_image(&image, StoreError::Missing))?;
            show(&format!("{:#}\n", details(found)));
        }
        Action::Rm { images } => {
            for image in images {
                let image = args.image(&image)?;
                if !store.remove(&image)? {
                    return Err(of_image(&image, StoreError::Missing));
                }
                show(&format!("{}\n", image.as_str()));
            }
        }
        Action::Prune { unused_for } => {
            let pruned = store.prune(unused_for.into())?;
            show(&format!("removed {} images, {} MiB\n", pruned.images, pruned.bytes >> 20));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(store: &Store, output: Output) -> Result<(), Failure> {
    if output == Output::Json {
        show(&format!("{:#}\n", store.list()?.iter().map(json_of).collect::<Value>()));
        return Ok(());
    }
    let row = |image: ImageInfo| {
        let size = format!("{:.1} MiB", image.bytes() as f64 / f64::from(1 << 20));
        let Record { reference, resolved, pulled, .. } = image.record;
        let digest = resolved.get(..19).unwrap_or(&resolved).to_owned();
        vec![reference, digest, size, ago(pulled), ago(image.used)]
    };
    let rows = store.list()?.into_iter().map(row).collect();
    show(&table(&["IMAGE", "DIGEST", "SIZE", "PULLED", "USED"], rows));
    Ok(())
}

fn json_of(image: &ImageInfo) -> Value {
    let time = |time| Timestamp::try_from(time).ok().map(|time| time.to_string());
    json!({
        "reference": image.record.reference,
        "digest": image.record.resolved,
        "bytes": image.bytes(),
        "pulled": time(image.record.pulled),
        "used": time(image.used),
    })
}

/// What is known about an image, as JSON. `config` has the names of Docker's fields.
pub(crate) fn details((info, mut configuration): (ImageInfo, Value)) -> Value {
    let mut json = json_of(&info);
    json["manifest"] = info.record.manifest.into();
    json["layers"] = info.layers.into_iter().map(|layer| layer.digest).collect();
    json["config"] = configuration["config"].take();
    json
}

fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    let units = [(86400, "d"), (3600, "h"), (60, "m")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds >= 2 * unit).unwrap_or((1, "s"));
    format!("{}{name} ago", seconds / unit)
}

fn archive(file: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let opened = File::open(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    Ok(Box::new(opened))
}

fn export(store: &Store, image: &Image, file: &Path) -> Result<(), Failure> {
    if file == Path::new("-") {
        if io::stdout().is_terminal() {
            return Err(Failure::usage("an archive is not for a terminal: name a file"));
        }
        return Ok(store.export(image, io::stdout().lock())?);
    }
    let created =
        File::create(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    // A part of an archive must not be taken for one.
    store.export(image, BufWriter::new(created)).inspect_err(|_| drop(std::fs::remove_file(file)))?;
    Ok(())
}

pub(crate) fn of_image(image: &Image, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", image.as_str()))
}

// === impl StoreArgs ===

impl StoreArgs {
    pub(crate) fn image(&self, name: &str) -> Result<Image, Failure> {
        Image::parse(name, &self.default_image_prefix)
            .map_err(|error| Failure::usage(format!("{name:?}: {error}")))
    }
}
