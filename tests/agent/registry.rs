//! Local packages for npm and pip: a registry and a directory with wheels.

use std::path::{Path, PathBuf};

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::process::Command;

/// Versions of the package `pads`.
const VERSIONS: [&str; 2] = ["1.0.0", "1.1.0"];

/// Registry that serves the package `pads` to npm until the caller drops the value.
pub struct Registry {
    directory: tempfile::TempDir,
    address: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Registry {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let mut versions = serde_json::Map::new();
        for version in VERSIONS {
            let dist = pack(directory.path(), version, &address).await;
            versions.insert(version.into(), json!({"name": "pads", "version": version, "dist": dist}));
        }
        let package = json!({"name": "pads", "dist-tags": {"latest": VERSIONS[1]}, "versions": versions});
        let app = axum::Router::new()
            .route("/pads", get(move || async move { ([(CONTENT_TYPE, "application/json")], package.to_string()) }))
            .route("/files/{name}", get(file))
            .with_state(directory.path().to_owned());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Registry { directory, address, server }
    }

    /// Returns shell commands that configure npm for this registry.
    pub fn exports(&self) -> String {
        let cache = self.directory.path().join("cache");
        let variables = self.variables(&cache);
        variables.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect()
    }

    fn variables(&self, cache: &Path) -> [(&'static str, String); 5] {
        [
            ("npm_config_registry", self.address.clone()),
            ("npm_config_cache", cache.display().to_string()),
            ("npm_config_audit", "false".into()),
            ("npm_config_fund", "false".into()),
            ("npm_config_update_notifier", "false".into()),
        ]
    }

    /// Returns the lock file that npm generates for these files.
    pub async fn lock(&self, files: &[(&str, &str)]) -> String {
        let project = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = project.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let cache = self.directory.path().join("cache");
        let mut npm = Command::new("npm");
        npm.args(["install", "--package-lock-only"]).current_dir(&project).envs(self.variables(&cache));
        let output = npm.output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(project.path().join("package-lock.json")).unwrap()
    }
}

/// Packs a version of the package, and returns its metadata for the registry.
async fn pack(directory: &Path, version: &str, address: &str) -> Value {
    let package = directory.join(version);
    std::fs::create_dir(&package).unwrap();
    std::fs::write(package.join("package.json"), json!({"name": "pads", "version": version}).to_string()).unwrap();
    std::fs::write(package.join("index.js"), format!("module.exports = '{version}'\n")).unwrap();
    let mut npm = Command::new("npm");
    npm.args(["pack", "--json", "--pack-destination"]).arg(directory).current_dir(&package);
    let output = npm.env("npm_config_cache", directory.join("cache")).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packed: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Depending on its version, npm prints an array, or an object with the package names as keys.
    let packed = packed.get(0).or_else(|| packed.get("pads")).unwrap();
    let file = packed["filename"].as_str().unwrap();
    json!({"tarball": format!("{address}/files/{file}"), "integrity": packed["integrity"], "shasum": packed["shasum"]})
}

async fn file(State(directory): State<PathBuf>, UrlPath(name): UrlPath<String>) -> Response {
    match std::fs::read(directory.join(name)) {
        Ok(bytes) => bytes.into_response(),
        Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Writes wheels of the packages `pads` and `other`. Each wheel contains a program that has the package's name. The
/// program prints the package version.
pub async fn make_wheels(directory: &Path) {
    const SCRIPT: &str = "
import sys, zipfile
for name, version in [('pads', '1.0.0'), ('pads', '1.1.0'), ('other', '1.0.0')]:
    info = f'{name}-{version}.dist-info'
    files = {
        f'{name}.py': f'version = \"{version}\"\\ndef main(): print(version)\\n',
        f'{info}/METADATA': f'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n',
        f'{info}/WHEEL': 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n',
        f'{info}/entry_points.txt': f'[console_scripts]\\n{name} = {name}:main\\n',
    }
    files[f'{info}/RECORD'] = ''.join(f'{path},,\\n' for path in [*files, f'{info}/RECORD'])
    with zipfile.ZipFile(f'{sys.argv[1]}/{name}-{version}-py3-none-any.whl', 'w') as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
";
    let output = Command::new("python3").args(["-c", SCRIPT]).arg(directory).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
