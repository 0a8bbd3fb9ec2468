//! `porch-fn images`: the images that this machine has for `up` and `run`.

mod client;
pub(crate) mod flags;
mod progress;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use jiff::Timestamp;
use porch_fn_flags::{CommaList, GoDuration};
use porch_fn_image::Image;
use porch_fn_images::{ImageInfo, Options, Owner, Record, Store};
use porch_fn_sandbox::UNPRIVILEGED;
use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

pub(crate) use self::client::{client, log_causes};
use self::flags::ImageStoreFlags;
pub(crate) use self::progress::Terminal;
use crate::failure::Failure;
use crate::output::{Output, show, table};

/// Where images are kept, and how registries are reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RegistryArgs {
    #[command(flatten)]
    pub(crate) store: ImageStoreFlags,
    /// Registries that speak plain HTTP: host or host:port, separated by commas
    #[arg(
        long,
        value_name = "HOSTS",
        env = "PORCH_FN_INSECURE_REGISTRIES",
        default_value = "",
        hide_default_value = true,
        help_heading = "Sandboxes"
    )]
    pub(crate) insecure_registries: CommaList,
}

/// Flags of all commands that name images themselves.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) registries: RegistryArgs,
    /// Prefix for images without a registry
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "ghcr.io/kptdev/krm-functions-catalog",
        help_heading = "Sandboxes"
    )]
    pub(crate) default_image_prefix: String,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Action {
    /// List the images of this machine
    List {
        /// Output format
        #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
        output: Output,
        #[command(flatten)]
        args: StoreArgs,
    },
    /// Pull images, also if they are here: a tag may have moved
    Pull {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        #[command(flatten)]
        args: StoreArgs,
    },
    /// Read images from an archive of docker save, podman save, skopeo or porch-fn images export
    Import {
        /// The archive; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Name of the image, instead of the names in the archive
        #[arg(long = "as", value_name = "IMAGE")]
        name: Option<String>,
        #[command(flatten)]
        args: StoreArgs,
    },
    /// Write an image to an OCI archive
    Export {
        /// The image
        image: String,
        /// The archive; - writes to standard output
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        args: StoreArgs,
    },
    /// Print what is known about an image, as JSON
    Inspect {
        /// The image
        image: String,
        #[command(flatten)]
        args: StoreArgs,
    },
    /// Remove images
    Rm {
        /// The images
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        #[command(flatten)]
        args: StoreArgs,
    },
    /// Remove images that are not in use
    Prune {
        /// Keep images that were used in this time
        #[arg(long, value_name = "DURATION", default_value = "0s")]
        unused_for: GoDuration,
        #[command(flatten)]
        args: StoreArgs,
    },
}

pub(crate) async fn run(action: Action) -> Result<ExitCode, Failure> {
    match action {
        Action::List { output, args } => list(&args.open()?, output)?,
        Action::Pull { images, args } => {
            log_causes();
            let (store, client) = (args.open()?, client(&args.registries)?);
            for image in images {
                let image = args.image(&image)?;
                store
                    .pull(&client, &image, &Terminal::new(&image))
                    .await
                    .map_err(|error| of_image(&image, error))?;
                show(&format!("{}\n", image.as_str()));
            }
        }
        Action::Import { file, name, args } => {
            let store = args.open()?;
            let name = name.map(|name| args.image(&name)).transpose()?;
            for image in store.import(archive(&file)?, name.as_ref()).await? {
                show(&format!("{}\n", image.as_str()));
            }
        }
        Action::Export { image, file, args } => {
            let (store, image) = (args.open()?, args.image(&image)?);
            spawn_blocking(move || export(&store, &image, &file)).await??;
        }
        Action::Inspect { image, args } => {
            let (store, image) = (args.open()?, args.image(&image)?);
            let found = store.inspect(&image)?.ok_or_else(|| missing(&image))?;
            show(&format!("{:#}\n", details(found)));
        }
        Action::Rm { images, args } => {
            let store = args.open()?;
            for image in images {
                let image = args.image(&image)?;
                if !store.remove(&image)? {
                    return Err(missing(&image));
                }
                show(&format!("{}\n", image.as_str()));
            }
        }
        Action::Prune { unused_for, args } => {
            let pruned = args.open()?.prune(unused_for.into())?;
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
    match seconds {
        0..=119 => format!("{seconds}s ago"),
        120..=7199 => format!("{}m ago", seconds / 60),
        7200..=172_799 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86400),
    }
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

/// The image is not here, and must not be pulled.
pub(crate) fn missing(image: &Image) -> Failure {
    of_image(image, "the image is not here: see porch-fn images list, pull and import")
}

pub(crate) fn of_image(image: &Image, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", image.as_str()))
}

// === impl RegistryArgs ===

impl RegistryArgs {
    /// The image store that the flags choose. If this process is root, all files of images belong to
    /// the user of all sandboxes.
    pub(crate) fn store_options(&self) -> Result<Options, Failure> {
        let owner = geteuid().is_root().then_some(Owner { uid: UNPRIVILEGED, gid: UNPRIVILEGED });
        let folder = self.store.folder().map_err(Failure::usage)?;
        Ok(Options { folder, max_bytes: self.store.image_max_size.0, owner })
    }
}

// === impl StoreArgs ===

impl StoreArgs {
    pub(crate) fn open(&self) -> Result<Store, Failure> {
        Ok(Store::open(self.registries.store_options()?)?)
    }

    pub(crate) fn image(&self, name: &str) -> Result<Image, Failure> {
        Image::parse(name, &self.default_image_prefix)
            .map_err(|error| Failure::usage(format!("{name:?}: {error}")))
    }
}
