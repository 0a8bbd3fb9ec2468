//! Tests when a pod counts as outdated. A wrong result replaces pods forever, or never.

use porch_fn_pool::PodName;
use porch_fn_settings::CacheConfig;

use super::*;
use crate::pods::images::ImageMetadata;
use crate::pods::kubernetes::fake::IMAGE;

fn millis(millis: u64) -> Time {
    Time::from_millis(millis)
}

fn blueprint_with(template: TemplateState, max_message: usize, started: u64) -> Blueprint {
    let flags = PodFlags { max_message, pull_secret: None, log_format: LogFormat::Text };
    let settings = Arc::new(crate::settings::tests::settings(CacheConfig::default()));
    Blueprint::new(template, flags, settings, millis(started), None)
}

fn blueprint(wrapper: &str) -> Blueprint {
    blueprint_with(Ok(Arc::new(Template::built_in(wrapper).unwrap())), 1024, 90)
}

fn json_lines(template: Template) -> Blueprint {
    let blueprint = blueprint_with(Ok(Arc::new(template)), 1024, 90);
    Blueprint { flags: PodFlags { log_format: LogFormat::Json, ..blueprint.flags }, ..blueprint }
}

fn digest(digest: &str, since: u64) -> ImageContent {
    ImageContent { digest: digest.into(), resolved: Some(millis(since)) }
}

fn made_from(blueprint: &Blueprint, content: Option<ImageContent>) -> PodRecipe {
    blueprint.recipe(&ImageKey::from(IMAGE), content)
}

#[test]
fn a_moved_tag_is_another_content_of_the_same_version() {
    let blueprint = blueprint("w:v1");
    let (old, new) = (
        made_from(&blueprint, Some(digest("sha256:01", 60))),
        made_from(&blueprint, Some(digest("sha256:02", 70))),
    );
    assert_eq!(old.content, Some(digest("sha256:01", 60)));
    assert_eq!(new, PodRecipe { content: Some(digest("sha256:02", 70)), ..old.clone() });
    assert!(old.is_outdated_by(&new) && !new.is_outdated_by(&old));
}

#[test]
fn another_configuration_is_another_version_of_the_same_content() {
    let content = Some(digest("sha256:01", 60));
    let old = made_from(&blueprint("w:v1"), content.clone());
    let template = || Ok(Arc::new(Template::built_in("w:v1").unwrap()));
    for new in [blueprint("w:v2"), blueprint_with(template(), 2048, 90)] {
        let new = made_from(&new, content.clone());
        assert_ne!(new.version, old.version);
        assert_eq!(PodRecipe { version: old.version.clone(), ..new }, old);
    }
    let restarted = made_from(&blueprint_with(template(), 1024, 1000), content.clone());
    assert_eq!(restarted, PodRecipe { config_time: Some(millis(1000)), ..old });
}

#[test]
fn only_pods_of_the_built_in_template_log_json() {
    let pod = "metadata: {}\nspec: {containers: [{name: function, image: x, command: [/wrapper-server-tools/wrapper-server]}]}\n";
    let config_map = [("template".to_owned(), format!("apiVersion: v1\nkind: Pod\n{pod}"))].into();
    for (template, is_told) in [
        (Template::built_in("w:v1").unwrap(), true),
        // The wrapper-server of a user's template may refuse the flag.
        (Template::from_config_map(&config_map).unwrap(), false),
    ] {
        let text = blueprint_with(Ok(Arc::new(template.clone())), 1024, 90);
        let json = json_lines(template);
        let (name, metadata) = (
            PodName { image: IMAGE.into(), ..PodName::default() },
            ImageMetadata { entrypoint: Vec::new(), content: None },
        );
        let order = PodOrder {
            object_name: "f",
            name: &name,
            shard_key: &"f".into(),
            reclaim_after: millis(0),
            metadata: &metadata,
            announce: None,
        };
        let args = |blueprint: &Blueprint| {
            let containers = blueprint.pod(&order).unwrap().spec.unwrap().containers;
            containers
                .into_iter()
                .flat_map(|container| container.args.unwrap_or_default())
                .collect::<Vec<_>>()
        };
        assert!(!args(&text).contains(&"--log-format=json".to_owned()), "the default adds no argument");
        assert_eq!(args(&json).contains(&"--log-format=json".to_owned()), is_told);
        assert_eq!(made_from(&json, None).version != made_from(&text, None).version, is_told);
    }
}

#[test]
fn without_a_template_nothing_is_outdated() {
    let content = Some(digest("sha256:01", 60));
    let pod = made_from(&blueprint("w:v1"), content.clone());
    let moved = Some(digest("sha256:02", 70));
    for state in [
        NoTemplate::Unread,
        NoTemplate::Awaited,
        NoTemplate::FunctionConfigsUnread,
        NoTemplate::Broken("broken".into()),
    ] {
        let none = made_from(&blueprint_with(Err(state), 1024, 1000), moved.clone());
        assert_eq!(none, PodRecipe::of("none", None));
        assert!(!pod.is_outdated_by(&none));
    }
}

#[test]
fn public_images_get_no_pull_secret() {
    let flags =
        PodFlags { max_message: 1, pull_secret: Some("auth-secret".to_owned()), log_format: LogFormat::Text };
    let blueprint = Blueprint { flags, ..blueprint("w:v1") };
    for (image, is_public) in [
        ("ghcr.io/kptdev/krm-functions-catalog/set-image:v0.1.1", true),
        ("gcr.io/kpt-fn/set-image:v0.1.1", true),
        ("ghcr.io/kptdev/other/set-image:v0.1.1", false),
        ("ghcr.io/kptdev/krm-functions-catalog-mine/f:v1", false),
        ("gcr.io/kpt-fn-contrib/f:v1", false),
    ] {
        assert_eq!(blueprint.pull_secret(&ImageKey::from(image)).is_none(), is_public, "{image}");
    }
}
