//! Reads the imports between the modules of a crate from its source files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemImpl, ItemMod, ItemUse, Macro, Meta, UseTree, VisRestricted, Visibility};

/// Maps each pair of a module and an imported module to the location of one import. Omits imports in tests.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// A path relative to the crate root. For example, the path of `crate::api::names` is `["api", "names"]`.
pub type ModulePath = Vec<String>;

/// Source files in the crate by module.
pub struct Crate {
    pub files: BTreeMap<ModulePath, SourceFile>,
}

/// A source file, which defines one module.
#[derive(Default)]
pub struct SourceFile {
    /// Path relative to `src`.
    pub path: PathBuf,
    pub module: ModulePath,
    /// All references in the file to items in this crate.
    pub references: Vec<Reference>,
    /// Names that the file re-exports with `pub use`, and their paths.
    pub re_exports: BTreeMap<String, ModulePath>,
    /// Modules in separate files that belong only to tests.
    pub test_modules: Vec<ModulePath>,
}

pub struct Reference {
    pub line: usize,
    pub path: ModulePath,
    pub in_test: bool,
}

impl Crate {
    pub fn read(directory: &Path) -> Result<Self> {
        let mut texts = Vec::new();
        for path in rust_files(directory)? {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push((path.strip_prefix(directory)?.to_owned(), text));
        }
        Self::parse(&texts)
    }

    pub fn parse(texts: &[(PathBuf, String)]) -> Result<Self> {
        let modules: BTreeSet<ModulePath> = texts.iter().map(|(path, _)| module_of(path)).collect();
        let mut files = BTreeMap::new();
        for (path, text) in texts {
            let syntax = syn::parse_file(text).with_context(|| format!("cannot parse {}", path.display()))?;
            let module = module_of(path);
            let file = SourceFile { path: path.clone(), module: module.clone(), ..SourceFile::default() };
            let mut reader = Reader { modules: &modules, module: module.clone(), in_test: false, file };
            reader.visit_file(&syntax);
            files.insert(module, reader.file);
        }
        Ok(Crate { files })
    }

    pub fn imports(&self) -> Imports {
        let test_modules: Vec<&ModulePath> = self.files.values().flat_map(|file| &file.test_modules).collect();
        let is_test = |module: &ModulePath| test_modules.iter().any(|test| module.starts_with(test));
        let mut imports = Imports::new();
        for file in self.files.values().filter(|file| !is_test(&file.module)) {
            let imported = imports.entry(file.module.join("::")).or_default();
            for reference in file.references.iter().filter(|reference| !reference.in_test) {
                let definition = self.definition(&reference.path);
                if let Some(other) = definition.filter(|other| other.module != file.module && !is_test(&other.module)) {
                    let place = || format!("src/{}:{}", file.path.display(), reference.line);
                    imported.entry(other.module.join("::")).or_insert_with(place);
                }
            }
        }
        imports
    }

    /// Returns the file that defines the item at a path. Resolves re-exports.
    pub fn definition(&self, path: &[String]) -> Option<&SourceFile> {
        let prefixes = (1..=path.len()).rev().filter_map(|length| path.get(..length));
        let file = prefixes.filter_map(|prefix| self.files.get(prefix)).next()?;
        let mut rest = path.iter().skip(file.module.len());
        match rest.next().and_then(|name| file.re_exports.get(name)) {
            Some(target) => self.definition(&target.iter().chain(rest).cloned().collect::<ModulePath>()),
            None => Some(file),
        }
    }
}

fn rust_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the module that a file defines, such as `api::pulumi::stack` for `api/pulumi/stack.rs`.
pub fn module_of(path: &Path) -> ModulePath {
    let mut module: ModulePath =
        path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    module
}

/// Collects the references in a file.
struct Reader<'a> {
    /// Modules of all files.
    modules: &'a BTreeSet<ModulePath>,
    /// The current module: the module of the file or an inline module in the file.
    module: ModulePath,
    in_test: bool,
    file: SourceFile,
}

impl Reader<'_> {
    /// Returns the path relative to the crate root, or `None` for paths in other crates and for local names.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let parents = path.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            // The binaries use the crate name to import modules from the library.
            "crate" | "pulumi_controller" => (0, 1),
            "self" => (self.module.len(), 1),
            "super" => (self.module.len().saturating_sub(parents), parents),
            _ => (self.module.len(), 0),
        };
        let absolute: ModulePath = self.module.iter().take(base).chain(path.iter().skip(rest)).cloned().collect();
        let is_child = || absolute.get(..=base).is_some_and(|child| self.modules.contains(child));
        (rest > 0 || is_child()).then_some(absolute)
    }

    fn add(&mut self, path: &[String], line: usize) {
        if let Some(path) = self.absolute(path).filter(|_| path.len() > 1) {
            self.file.references.push(Reference { line, path, in_test: self.in_test });
        }
    }

    /// Adds the imports of a `use` item. If the item is public, also adds the re-exports.
    fn add_use(&mut self, tree: &UseTree, prefix: &[String], is_public: bool) {
        let with = |name: &dyn ToString| prefix.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        let (path, name) = match tree {
            UseTree::Path(path) => return self.add_use(&path.tree, &with(&path.ident), is_public),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_use(tree, prefix, is_public));
            }
            UseTree::Name(name) if name.ident == "self" => (prefix.to_vec(), prefix.last().cloned()),
            UseTree::Name(name) => (with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(rename) => (with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => (with(&"*"), None),
        };
        self.add(&path, tree.span().start().line);
        if let (Some(name), Some(target), true) = (name, self.absolute(&path), is_public) {
            self.file.re_exports.insert(name, target);
        }
    }

    /// Adds the paths in macro arguments.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut line, mut colons) = (Vec::new(), 0, 0);
        for token in tokens {
            match token {
                TokenTree::Punct(sign) if sign.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(&std::mem::take(&mut path), line);
                    }
                    line = name.span().start().line;
                    path.push(name.to_string());
                    colons = 0;
                }
                other => {
                    self.add(&std::mem::take(&mut path), line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(&path, line);
    }

    fn visit_with(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.in_test;
        self.in_test |= attributes.iter().any(is_test_only);
        visit(self);
        self.in_test = before;
    }
}

fn is_test_only(attribute: &Attribute) -> bool {
    matches!(&attribute.meta, Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        if item.content.is_none() && item.attrs.iter().any(is_test_only) {
            self.file.test_modules.push(self.module.clone());
        }
        self.visit_with(&item.attrs, |reader| visit::visit_item_mod(reader, item));
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_public = !matches!(item.vis, Visibility::Inherited) && self.module == self.file.module;
        self.visit_with(&item.attrs, |reader| reader.add_use(&item.tree, &[], is_public));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.visit_with(&item.attrs, |reader| visit::visit_item_impl(reader, item));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(&names, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(call.tokens.clone());
    }

    /// Ignores visibilities such as `pub(in crate::agent)`, which are not imports.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
}
