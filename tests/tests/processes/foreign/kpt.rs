//! kpt itself, without a container engine: `porch-fn kpt` renders a package with five functions.

use std::fs;

use porch_fn_tests::image_user::ImageUser;

use super::function_image;

const CATALOG: &str = "ghcr.io/kptdev/krm-functions-catalog";
const FUNCTIONS: [&str; 5] = ["set-namespace", "starlark", "apply-replacements", "label-setter", "validator"];
const PACKAGE: [(&str, &str); 4] = [
    (
        "Kptfile",
        "apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: app
pipeline:
  mutators:
  - image: CATALOG/set-namespace:v1
    configMap: {namespace: shop}
  - image: CATALOG/starlark:v1
    configPath: starlark.yaml
  - image: CATALOG/apply-replacements:v1
    configPath: replacements.yaml
  - image: CATALOG/label-setter:v1
    configMap: {tier: web}
  validators:
  - image: CATALOG/validator:v1
",
    ),
    ("config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  text: x\n"),
    (
        "starlark.yaml",
        "apiVersion: fn.kpt.dev/v1alpha1
kind: StarlarkRun
metadata:
  name: more
  annotations: {config.kubernetes.io/local-config: \"true\"}
source: |
  for item in ctx.resource_list[\"items\"]:
    if item[\"kind\"] == \"ConfigMap\":
      item[\"data\"][\"more\"] = \"1\"
",
    ),
    (
        "replacements.yaml",
        "apiVersion: fn.kpt.dev/v1alpha1
kind: ApplyReplacements
metadata:
  name: text
  annotations: {config.kubernetes.io/local-config: \"true\"}
replacements:
- source: {kind: ConfigMap, name: a, fieldPath: metadata.name}
  targets:
  - select: {kind: ConfigMap}
    fieldPaths: [data.text]
",
    ),
];
const RENDERED: &str = "apiVersion: v1
kind: ConfigMap
metadata:
  name: a
  namespace: shop
  labels:
    tier: 'web'
data:
  text: a
  more: \"1\"
";

#[tokio::test]
#[ignore = "needs kpt and tests/functions; tests/run runs it"]
async fn a_package_with_five_functions_is_rendered() {
    for user in ImageUser::all() {
        for name in FUNCTIONS {
            user.import(&format!("{CATALOG}/{name}:v1"), &function_image(name)).await;
        }
        let package = user.sandbox().path("home/package");
        // kpt writes into the package, so the user must own it.
        let made = user.run_program("mkdir", &[package.to_str().unwrap()], b"").await;
        assert!(made.status.success(), "{made:?}");
        for (name, content) in PACKAGE {
            let file = package.join(name);
            let content = content.replace("CATALOG", CATALOG);
            let written = user.run_program("tee", &[file.to_str().unwrap()], content.as_bytes()).await;
            assert!(written.status.success(), "{written:?}");
        }
        let ended = user.run(&["kpt", "--", "fn", "render", package.to_str().unwrap()], b"").await;
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{stderr}");
        assert_eq!(stderr.matches("[PASS]").count(), FUNCTIONS.len(), "{stderr}");
        assert_eq!(fs::read_to_string(package.join("config.yaml")).unwrap(), RENDERED);
    }
}
