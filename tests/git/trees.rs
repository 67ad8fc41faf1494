//! Tests the content of the artifacts that the controller creates from commits.

use serde_json::json;

use crate::follower::{Controller, origin};
use crate::http_server::Server;
use crate::repository::Repository;

#[tokio::test(flavor = "multi_thread")]
async fn the_same_commit_always_has_the_same_digest() {
    let repository = Repository::with_project();
    for name in ["a/b/c", "a-b", "a.b", "z"] {
        repository.write(name, name);
    }
    repository.commit();
    let server = Server::of(&repository).await;
    let fields = json!({"projectRepo": server.url(), "branch": "main"});
    let mut digests = Vec::new();
    for _ in 0..2 {
        let mut controller = Controller::new().await;
        digests.push(controller.resolve(&fields).await.unwrap().digest);
    }
    assert_eq!(digests[0], digests[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn symlinks_modes_and_all_file_types_are_preserved() {
    let repository = Repository::with_project();
    repository.write("bin/run", "#!/bin/sh\n");
    repository.make_executable("bin/run");
    repository.write("packages/shared/index.ts", "export {}");
    repository.link("apps/web/shared", "../../packages/shared");
    repository.write("empty", "");
    repository.write("assets/image.png", "no default list of extensions");
    repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let resolved = controller.resolve(&json!({"projectRepo": server.url(), "branch": "main"})).await.unwrap();
    let files = controller.files(&resolved);
    let expected = [
        ("Pulumi.yaml", "name: app\nruntime: yaml\n"),
        ("apps/web/shared", "-> ../../packages/shared"),
        ("assets/image.png", "no default list of extensions"),
        ("bin/run", "* #!/bin/sh\n"),
        ("empty", ""),
        ("packages/shared/index.ts", "export {}"),
    ];
    assert_eq!(files, expected.map(|(name, content)| (name.to_owned(), content.to_owned())).into());
    assert!(origin(&resolved).warnings.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_in_sourceignore_are_excluded() {
    let repository = Repository::with_project();
    repository.write(".sourceignore", "# not for workspaces\n/docs/\n*.log\n!keep.log\n");
    repository.write("apps/.sourceignore", "/secret.txt\n");
    for name in ["docs/a.md", "apps/docs/a.md", "a.log", "apps/a.log", "keep.log", "apps/secret.txt", "secret.txt"] {
        repository.write(name, name);
    }
    repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let resolved = controller.resolve(&json!({"projectRepo": server.url(), "branch": "main"})).await.unwrap();
    let files: Vec<String> = controller.files(&resolved).into_keys().collect();
    let expected = [".sourceignore", "Pulumi.yaml", "apps/.sourceignore", "apps/docs/a.md", "keep.log", "secret.txt"];
    assert_eq!(files, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn submodules_lfs_pointers_and_escaping_symlinks_are_reported() {
    let repository = Repository::with_project();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    repository.write("big.bin", pointer);
    repository.link("outside", "/etc/passwd");
    let head = repository.head();
    repository.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{head},vendor/lib")]);
    repository.git(&["add", "big.bin", "outside"]);
    repository.git(&["commit", "--quiet", "--message", "a change"]);
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let resolved = controller.resolve(&json!({"projectRepo": server.url(), "branch": "main"})).await.unwrap();
    let warnings = origin(&resolved).warnings.join("\n");
    for part in ["submodules are not fetched", "vendor/lib", "Git LFS", "big.bin", "leave the repository", "outside"] {
        assert!(warnings.contains(part), "{part}: {warnings}");
    }
    assert!(!controller.files(&resolved).contains_key("outside"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_outside_the_selected_paths_keeps_their_digest() {
    let repository = Repository::with_project();
    repository.write("apps/web/index.ts", "1");
    repository.write("apps/api/index.ts", "1");
    repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": server.url(), "branch": "main", "paths": ["/apps/web/"]});
    let before = controller.resolve(&fields).await.unwrap();
    repository.write("apps/api/index.ts", "2");
    repository.commit();
    let untouched = controller.resolve_now(&fields, "one").await.unwrap();
    assert_ne!(untouched.revision, before.revision);
    assert_eq!(origin(&untouched).selection, origin(&before).selection);
    repository.write("apps/web/index.ts", "2");
    repository.commit();
    let touched = controller.resolve_now(&fields, "two").await.unwrap();
    assert_ne!(origin(&touched).selection, origin(&before).selection);
}
