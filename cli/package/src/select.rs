//! Selects the resources that a function gets, like kpt's `--match-*` flags. The other resources of
//! the package stay as they are.

use crate::file::{Document, File, Package};
use crate::output::Unselected;
use crate::yaml::{Node, Yaml};

/// What a resource must have. A field without a value matches every resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    /// The resource's `kind`.
    pub kind: Option<String>,
    /// Its `metadata.name`.
    pub name: Option<String>,
    /// Its `metadata.namespace`.
    pub namespace: Option<String>,
    /// Its `apiVersion`.
    pub api_version: Option<String>,
}

impl Selector {
    fn matches(&self, document: &Document) -> bool {
        let fields: [(&Option<String>, &[&str]); 4] = [
            (&self.kind, &["kind"]),
            (&self.name, &["metadata", "name"]),
            (&self.namespace, &["metadata", "namespace"]),
            (&self.api_version, &["apiVersion"]),
        ];
        if fields.iter().all(|(wanted, _)| wanted.is_none()) {
            return true;
        }
        // The text was parsed when the package was read.
        let Some(yaml) = Yaml::valid(document.text.as_str()) else { return false };
        fields.iter().all(|(wanted, path)| {
            let found = path.iter().try_fold(&yaml.root, |node, key| node.get(key)).and_then(Node::text);
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        })
    }
}

impl Package {
    /// Splits the package into the resources that `selector` matches, and the others. Pass the
    /// others to [`split_with()`](crate::split_with()).
    pub fn select(&self, selector: &Selector) -> (Self, Unselected) {
        let (mut selected, mut unselected) = (Self::default(), Unselected::default());
        for file in &self.files {
            let mut documents = Vec::new();
            for (index, document) in file.documents.iter().enumerate() {
                if selector.matches(document) {
                    documents.push(document.clone());
                } else {
                    unselected.0.push((file.path.clone(), Some(index), document.text.clone()));
                }
            }
            selected.files.push(File { path: file.path.clone(), text: String::new(), documents });
        }
        (selected, unselected)
    }
}
