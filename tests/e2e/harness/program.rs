//! Builders for Pulumi YAML programs.

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

/// A file in a repository.
#[derive(Clone, Debug)]
pub struct File {
    pub path: String,
    pub content: String,
}

/// Returns a `.tar.gz` archive that contains the files.
pub fn archive(files: &[File]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(file.content.len()).expect("the file size fits in u64"));
        header.set_mode(0o644);
        archive.append_data(&mut header, &file.path, file.content.as_bytes()).expect("the path fits in a tar header");
    }
    archive.into_inner().and_then(GzEncoder::finish).expect("write to memory")
}

/// A project file with a program in Pulumi YAML. The file format is JSON, which is also valid YAML.
#[derive(Clone, Debug)]
pub struct Program {
    content: Map<String, Value>,
}

impl Program {
    pub fn new(project: &str) -> Program {
        let mut content = Map::new();
        content.insert("name".to_owned(), json!(project));
        content.insert("runtime".to_owned(), json!("yaml"));
        Program { content }
    }

    /// Adds a value that the program reads from the stack configuration.
    pub fn config(self, key: &str, default: &str) -> Program {
        self.with("config", key, json!({"type": "string", "default": default}))
    }

    /// Adds a configuration value whose type the Pulumi YAML language defines: `String`, `Number`, `Boolean` or
    /// `Object`. The `config` section of the project file has fewer types.
    pub fn typed_config(self, key: &str, kind: &str) -> Program {
        self.with("configuration", key, json!({"type": kind}))
    }

    /// Adds a resource that the test provider manages. The provider log contains the resource under the same name.
    pub fn step(self, name: &str, properties: Value) -> Program {
        let mut properties = properties;
        properties["name"] = json!(name);
        self.step_with(name, json!({"properties": properties}))
    }

    /// Adds a resource of the test provider with these fields, such as `options` or `get`.
    pub fn step_with(self, name: &str, fields: Value) -> Program {
        let mut resource = fields;
        resource["type"] = json!("testing:index:Step");
        self.with("resources", name, resource)
    }

    pub fn output(self, name: &str, value: Value) -> Program {
        self.with("outputs", name, value)
    }

    /// Returns the repository files: only the project file, in the root directory.
    pub fn files(&self) -> Vec<File> {
        vec![self.file("Pulumi.yaml")]
    }

    /// Returns the project file at a path.
    pub fn file(&self, path: &str) -> File {
        File { path: path.to_owned(), content: format!("{:#}\n", Value::Object(self.content.clone())) }
    }

    /// Returns a Program object that contains this program.
    pub fn object(&self, name: &str) -> Value {
        let is_content = |(key, _): &(&String, &Value)| !["name", "runtime"].contains(&key.as_str());
        let content: Map<String, Value> =
            self.content.iter().filter(is_content).map(|(key, value)| (key.clone(), value.clone())).collect();
        json!({"apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {"name": name}, "program": content})
    }

    fn with(mut self, section: &str, key: &str, value: Value) -> Program {
        self.content.entry(section).or_insert_with(|| json!({}))[key] = value;
        self
    }
}
