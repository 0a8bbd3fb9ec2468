//! Sends real packages through router, runner and wrapper. Each answer must be equal to the output
//! of the same function when it is started directly on the same input.

use std::fs;
use std::path::{Path, PathBuf};

use porch_fn_package::FunctionConfig;
use porch_fn_tests::client::Client;
use porch_fn_tests::foreign;
use porch_fn_tests::process::{Sandbox, Server, binary, figure};
use tonic::Code;

/// Copies the name in the package's Kptfile into an annotation of each Deployment. The test
/// replaces NAME with the package's name.
const REPLACEMENTS: &str = "\
apiVersion: fn.kpt.dev/v1alpha1
kind: ApplyReplacements
metadata:
  name: origin
replacements:
- source:
    kind: Kptfile
    name: NAME
    fieldPath: metadata.name
  targets:
  - select:
      kind: Deployment
    fieldPaths:
    - metadata.annotations.origin
    options:
      create: true
";

const STARLARK: &str = "\
apiVersion: fn.kpt.dev/v1alpha1
kind: StarlarkRun
metadata:
  name: replicas
source: |
  for item in ctx.resource_list[\"items\"]:
    if item[\"kind\"] == \"Deployment\":
      item[\"spec\"][\"replicas\"] = 3
";

type Config = fn(&str) -> Option<FunctionConfig>;

struct Function {
    name: &'static str,
    program: PathBuf,
    /// Returns the function's functionConfig for the package with this name.
    config: Config,
}

/// `cat`, and functions that use other SDKs.
fn functions() -> Vec<Function> {
    let cat = Function { name: "cat", program: "/bin/cat".into(), config: |_| None };
    let foreign: [(&str, Config); 6] = [
        ("set-namespace", |_| Some(FunctionConfig::from_pairs(&["namespace=shop"]).unwrap())),
        ("starlark", |_| Some(FunctionConfig::parse(STARLARK).unwrap())),
        ("apply-replacements", |name| {
            Some(FunctionConfig::parse(&REPLACEMENTS.replace("NAME", name)).unwrap())
        }),
        ("label-setter", |_| Some(FunctionConfig::from_pairs(&["team=blue", "tier=1"]).unwrap())),
        ("validator", |_| None),
        ("namespace-generator", |_| {
            Some(FunctionConfig::from_pairs(&["name=team-a", "owner=Žofie", "quota=10"]).unwrap())
        }),
    ];
    let found = foreign.map(|(name, config)| Function { name, program: foreign::function(name), config });
    std::iter::once(cat).chain(found).collect()
}

/// The packages of tests/packages, by name.
fn packages() -> Vec<(String, PathBuf)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages");
    let mut packages: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("Kptfile").is_file())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path))
        .collect();
    packages.push(("porch".to_owned(), directory.join("porch/1.6")));
    packages.sort();
    assert_eq!(packages.len(), 6, "{packages:?}");
    packages
}

struct Stack {
    sandbox: Sandbox,
    functions: Vec<Function>,
    _runner: Server,
    router: Server,
}

impl Stack {
    async fn start() -> Self {
        let sandbox = Sandbox::new();
        let functions = functions();
        let images: Vec<_> = functions.iter().map(|function| format!("ex.io/{}:v1", function.name)).collect();
        let programs = functions.iter().map(|function| function.program.clone());
        let programs = images.iter().map(String::as_str).zip(programs);
        let runner = sandbox.runner(sandbox.local_programs(&binary("wrapper-server"), programs)).await;
        let router = sandbox.router(&[&runner], &[]).await;
        Self { sandbox, functions, _runner: runner, router }
    }

    /// Runs the function directly and through all servers, and compares the results. Returns
    /// whether the function succeeded.
    async fn compare(&self, function: &Function, package: &str, list: String) -> bool {
        let what = format!("{} on {package}", function.name);
        let image = format!("ex.io/{}:v1", function.name);
        let client = Client::new(self.router.address());
        let direct = self.sandbox.run(&function.program, [""; 0], list.as_bytes());
        let (direct, answer) = tokio::join!(direct, client.call(&image, list.clone()));
        let stderr = String::from_utf8_lossy(&direct.stderr);
        if direct.status.success() {
            assert_eq!((answer.code, answer.message.as_str()), (Code::Ok, ""), "{what}");
            assert!(answer.resource_list[..] == direct.stdout[..], "{what} differs");
            assert_eq!(answer.log(), stderr, "{what}");
        } else {
            assert_eq!(answer.code, Code::Internal, "{what}");
            if stderr.len() < 30_000 {
                assert!(answer.message.ends_with(&format!(" and stderr: {stderr}")), "{what}");
            } else {
                // The answer leaves out the middle of a long text.
                let last = &stderr[stderr.ceil_char_boundary(stderr.len() - 1000)..];
                assert!(answer.message.contains("left out") && answer.message.ends_with(last), "{what}");
            }
        }
        direct.status.success()
    }
}

fn list(directory: &Path, name: &str, function: &Function) -> String {
    let package = porch_fn_package::read(directory, 5 << 20).unwrap();
    assert!(package.item_count() > 0, "{name}");
    package.to_resource_list((function.config)(name).as_ref())
}

#[tokio::test]
#[ignore = "needs the built binaries and tests/functions; tests/run runs it"]
async fn each_answer_equals_the_output_of_the_function_itself() {
    let stack = Stack::start().await;
    for function in &stack.functions {
        let mut succeeded = 0;
        for (name, directory) in packages() {
            let list = list(&directory, &name, function);
            succeeded += usize::from(stack.compare(function, &name, list).await);
        }
        figure(&format!(
            "{}: {succeeded} of 6 packages succeed, all answers equal the direct output",
            function.name
        ));
        assert!(succeeded >= 3, "{}: only {succeeded} packages succeed", function.name);
    }
}
