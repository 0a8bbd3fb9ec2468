//! `porch-fn config`: prints the settings for an image, and the source of each setting. A router asks
//! the image's owner; a runner answers itself.

use std::process::ExitCode;

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use porch_fn_settings::Page;
use serde_json::Value;

use crate::admin::{AdminPort, PageArgs};
use crate::cluster::ADMIN;
use crate::failure::Failure;
use crate::output::table;

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// The image, as callers write it
    image: String,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) async fn run(ConfigArgs { image, page: args }: ConfigArgs) -> Result<ExitCode, Failure> {
    let reached = args.cluster.reach(args.address, &ADMIN).await?;
    let server = AdminPort { kind: "router", address: reached.address.clone() };
    let path = format!("/config?image={}", utf8_percent_encode(&image, NON_ALPHANUMERIC));
    let (status, body) = server.get(&path).await.map_err(|error| reached.explain(error))?;
    // A router that cannot ask the owner of the image answers 503.
    let is_refusal = matches!(status, StatusCode::BAD_REQUEST | StatusCode::SERVICE_UNAVAILABLE);
    let refusal: Option<Value> = serde_json::from_slice(&body).ok().filter(|_| is_refusal);
    if let Some(error) = refusal.as_ref().and_then(|page| page.get("error")?.as_str()) {
        let is_usage = status == StatusCode::BAD_REQUEST;
        return Err(if is_usage { Failure::usage(error) } else { Failure::unreachable(error) });
    }
    let page = server.read(&path, status, &body).map_err(|error| reached.explain(error))?;
    args.output.print(&page, tables);
    Ok(ExitCode::SUCCESS)
}

fn tables(page: &Page) -> String {
    let rows = page.settings.iter().map(|row| {
        let value = row.value.as_str().map_or_else(|| row.value.to_string(), str::to_owned);
        vec![row.setting.clone(), value, row.from.clone()]
    });
    let settings = table(&["SETTING", "VALUE", "FROM"], rows.collect());
    let notes = match page.notes.as_slice() {
        [] => String::new(),
        notes => format!("\nNOTES\n{}\n", notes.join("\n")),
    };
    format!("{}\n\n{settings}{notes}", page.image)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::ClusterArgs;
    use crate::output::Output;
    use crate::testing::serve;

    #[test]
    fn the_table_contains_settings_and_notes() {
        let settings = json!([
            {"setting": "ttl", "value": "30m0s", "from": "default of --pod-ttl"},
            {"setting": "maxPods", "value": 4, "from": "FunctionConfig f"},
            {"setting": "securityContext", "value": {"runAsUser": 7}, "from": "FunctionConfig f"},
        ]);
        let page = json!({"image": "ghcr.io/x/f:v1", "settings": settings, "notes": ["one", "two"]});
        let page: Page = serde_json::from_value(page).unwrap();
        assert_eq!(
            tables(&page),
            "ghcr.io/x/f:v1\n\n\
             SETTING           VALUE             FROM\n\
             ttl               30m0s             default of --pod-ttl\n\
             maxPods           4                 FunctionConfig f\n\
             securityContext   {\"runAsUser\":7}   FunctionConfig f\n\
             \nNOTES\none\ntwo\n"
        );
        assert!(tables(&Page { notes: vec![], ..page }).ends_with("FunctionConfig f\n"));
    }

    /// Runs the command on the server at `address`, and returns the command's error.
    async fn failure(address: &str) -> String {
        let image = "localhost:5000/f:v1@sha256:a&b=ä".to_owned();
        let (address, cluster) = (address.to_owned(), ClusterArgs::default());
        let page = PageArgs { address, output: Output::Table, cluster };
        run(ConfigArgs { image, page }).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn an_owner_that_cannot_be_asked_is_no_usage_error() {
        for (status, code) in [("503 Service Unavailable", 2_u8), ("400 Bad Request", 64)] {
            let answer = (status.to_owned(), r#"{"error": "a text"}"#.to_owned());
            let (address, asked) = serve(vec![answer]).await;
            let page = PageArgs { address, output: Output::Table, cluster: ClusterArgs::default() };
            let refused = run(ConfigArgs { image: "f:v1".to_owned(), page }).await.unwrap_err();
            assert_eq!((refused.to_string().as_str(), refused.code()), ("a text", ExitCode::from(code)));
            asked.await.unwrap();
        }
    }

    #[tokio::test]
    async fn errors_distinguish_refused_images_other_servers_and_unreachable_ones() {
        let see = "; see --address, and -n for a cluster";
        let hint = "; it may be a runner's, or its version may be older than 0.2.0";
        for (status, body, hint, is_refused) in [
            ("400 Bad Request", r#"{"error": "not an image"}"#, "", true),
            ("400 Bad Request", "what?", "", false),
            ("404 Not Found", "pages: /shards", hint, false),
        ] {
            let (address, asked) = serve(vec![(status.to_owned(), body.to_owned())]).await;
            let other =
                format!("{address} is not a router's admin port (/config returned {status}{hint}){see}");
            assert_eq!(failure(&address).await, if is_refused { "not an image" } else { &other });
            let path = "/config?image=localhost%3a5000%2ff%3av1%40sha256%3aa%26b%3d%c3%a4";
            assert_eq!(asked.await.unwrap(), [path]);
        }
        let (closed, ended) = serve(vec![]).await;
        ended.await.unwrap();
        for (address, reason) in [
            (closed.as_str(), "Connection refused (os error 111)"),
            ("127.0.0.1", "invalid socket address: give HOST:PORT"),
        ] {
            let expected = format!("cannot reach the router's admin port at {address}: {reason}{see}");
            assert_eq!(failure(address).await, expected);
        }
    }
}
