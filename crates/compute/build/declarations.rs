//! What the kernels' sources declare, read once when this crate is built: each kernel with its
//! file, its registers and its argument, and the fields of every argument with their offsets. The
//! sources are the only description; from it come the constants that launches name kernels by,
//! the structs that are passed to them, and assertions of every offset for both compilers.
//!
//! It reads the part of C that such declarations are written in, and says so where a struct needs
//! more.

use std::{collections::HashMap, fmt::Write};

/// A line that begins with `KERNEL(` or a macro made of it, such as `MATMUL_KERNEL(`.
#[derive(Debug, PartialEq)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) file: String,
    /// The struct it is given.
    pub(crate) args: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: String,
    /// As Rust writes it.
    pub(crate) ty: String,
    pub(crate) offset: usize,
    /// Of an array, else 1.
    pub(crate) count: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Struct {
    pub(crate) name: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) size: usize,
    pub(crate) align: usize,
}

/// Sources by file name, without their comments.
pub(crate) struct Sources(Vec<(String, String)>);

impl Sources {
    pub(crate) fn new<'s>(files: impl Iterator<Item = (&'s str, &'s str)>) -> Self {
        Self(files.map(|(name, text)| (name.to_string(), without_comments(text))).collect())
    }

    /// Every kernel, by name.
    pub(crate) fn kernels(&self) -> Vec<Kernel> {
        // What a macro made of `KERNEL` is given is in its definition.
        let mut args_of: HashMap<&str, &str> = HashMap::new();
        for (_, text) in &self.0 {
            for definition in text.split("#define ").skip(1) {
                let name = word(definition);
                if let Some(at) = definition.find(" KERNEL(").filter(|_| is_kernel(name)) {
                    args_of.insert(name, parameter(&definition[at..], 2));
                }
            }
        }
        let mut kernels: Vec<Kernel> = Vec::new();
        for (file, text) in &self.0 {
            for line in text.lines().filter(|line| is_kernel(word(line))) {
                let args = match word(line) {
                    "KERNEL" => parameter(line, 2),
                    made => args_of.get(made).unwrap_or_else(|| panic!("{file}: what is {made}?")),
                };
                let name = parameter(line, 0).to_string();
                assert!(parameter(line, 1).parse::<u32>().is_ok(), "{file}: registers of {name}?");
                assert!(kernels.iter().all(|k| k.name != name), "{file}: {name} is there twice");
                kernels.push(Kernel { name, file: file.clone(), args: args.to_string() });
            }
        }
        kernels.sort_by(|a, b| a.name.cmp(&b.name));
        kernels
    }

    /// The value of `constexpr int NAME = VALUE;`, or a number as it stands.
    fn integer(&self, name: &str) -> usize {
        let definition = format!("constexpr int {name} = ");
        let stated = self.0.iter().filter_map(|(_, text)| text.split(&definition).nth(1));
        let mut values: Vec<&str> = stated.filter_map(|rest| rest.split(';').next()).collect();
        values.dedup();
        match values[..] {
            [] => name.parse().unwrap_or_else(|_| panic!("`{name}` is no number")),
            [value] => value.parse().unwrap_or_else(|_| panic!("`{value}` is no number")),
            _ => panic!("`{name}` is {}", values.join(" and ")),
        }
    }

    /// The integers that a file names, in its order.
    pub(crate) fn integers(&self, file: &str) -> Vec<(&str, usize)> {
        let text = &self.0.iter().find(|(name, _)| name == file).expect("the file is there").1;
        let named = text.lines().filter_map(|line| line.strip_prefix("constexpr int "));
        named.map(|rest| (word(rest), self.integer(word(rest)))).collect()
    }

    /// Adds the struct of that name and those that lie in it, inner ones first.
    pub(crate) fn layout(&self, name: &str, found: &mut Vec<Struct>) -> Struct {
        if let Some(known) = found.iter().find(|s| s.name == name) {
            return known.clone();
        }
        let (align, body) = self.body(name);
        let mut layout = Struct { name: name.to_string(), fields: Vec::new(), size: 0, align };
        for line in body.split(';').map(str::trim).filter(|line| !line.is_empty()) {
            let line = line.replace("const ", " ").replace("const*", "*");
            let ty = word(line.trim_start());
            for (i, field) in line.split(',').enumerate() {
                let field = if i == 0 { &field.trim_start()[ty.len()..] } else { field };
                let (mut ty, mut size, align) = if field.contains('*') {
                    ("Address".to_string(), 8, 8)
                } else {
                    match ty {
                        "u8" => ("u8".to_string(), 1, 1),
                        "int" => ("i32".to_string(), 4, 4),
                        "u32" => ("u32".to_string(), 4, 4),
                        "float" => ("f32".to_string(), 4, 4),
                        "u64" => ("u64".to_string(), 8, 8),
                        _ => {
                            let inner = self.layout(ty, found);
                            (inner.name, inner.size, inner.align)
                        }
                    }
                };
                let name = word(field.trim_start_matches(['*', ' '])).to_string();
                assert!(!name.is_empty(), "{}: what is `{line}`?", layout.name);
                let mut count = 1;
                if let Some((_, length)) = field.split_once('[') {
                    count = self.integer(length.trim_end().trim_end_matches(']'));
                    (ty, size) = (format!("[{ty}; {count}]"), size * count);
                }
                let offset = layout.size.next_multiple_of(align);
                layout.fields.push(Field { name, ty, offset, count });
                (layout.size, layout.align) = (offset + size, layout.align.max(align));
            }
        }
        layout.size = layout.size.next_multiple_of(layout.align);
        found.push(layout.clone());
        layout
    }

    /// The alignment that a struct asks for, and its fields' text.
    fn body(&self, name: &str) -> (usize, &str) {
        for (_, text) in &self.0 {
            for rest in text.split("struct ").skip(1) {
                let aligned = rest.strip_prefix("alignas(").and_then(|r| r.split_once(") "));
                let (align, rest) = aligned.unwrap_or(("1", rest));
                if word(rest) == name && rest[name.len()..].starts_with(" {") {
                    let fields = &rest[name.len() + 2..];
                    let end = fields.find('}').expect("a struct has an end");
                    assert!(!fields[..end].contains('{'), "{name} has more than fields");
                    return (align.parse().expect("a number"), &fields[..end]);
                }
            }
        }
        panic!("no kernel's source declares a struct {name}")
    }
}

/// The layouts as Rust: structs, and an assertion of every offset. `given` are those that are there
/// already; those of `arrays` lie in memory as bytes, so they have no padding.
pub(crate) fn rust(structs: &[Struct], given: &[&str], arrays: &[&str]) -> String {
    let mut out = String::new();
    for s in structs.iter().filter(|s| !given.contains(&s.name.as_str())) {
        let name = &s.name;
        let mut derived = String::from("Clone, Copy");
        // Neither what is given nor a long array has a default.
        let has_default = |f: &Field| !given.contains(&f.ty.as_str()) && f.count <= 32;
        if s.fields.iter().all(has_default) {
            derived += ", Default";
        }
        if arrays.contains(&name.as_str()) {
            derived += ", bytemuck::Pod, bytemuck::Zeroable";
        }
        let mut asserted = format!("size_of::<{name}>() == {}", s.size);
        writeln!(out, "#[repr(C)]\n#[derive({derived})]\npub(crate) struct {name} {{")
            .expect("a string grows");
        for Field { name: field, ty, offset, .. } in &s.fields {
            writeln!(out, "    pub(crate) {field}: {ty},").expect("a string grows");
            write!(asserted, " && std::mem::offset_of!({name}, {field}) == {offset}")
                .expect("a string grows");
        }
        writeln!(out, "}}\nconst _: () = assert!({asserted});").expect("a string grows");
    }
    out
}

/// The layouts of those structs that a source declares, as assertions in C++.
pub(crate) fn assertions(structs: &[Struct], source: &str) -> String {
    let declares = |s: &&Struct| source.contains(&format!(" {} {{", s.name));
    let mut out = String::new();
    for s in structs.iter().filter(declares) {
        let name = &s.name;
        write!(out, "static_assert(sizeof({name}) == {}", s.size).expect("a string grows");
        for Field { name: field, offset, .. } in &s.fields {
            // NVRTC has no offsetof, but what it is made of.
            write!(out, " && __INTADDR__(&(({name}*)0)->{field}) == {offset}")
                .expect("a string grows");
        }
        writeln!(out, ", \"{name} as Rust passes it\");").expect("a string grows");
    }
    out
}

fn is_kernel(word: &str) -> bool {
    word == "KERNEL" || word.ends_with("_KERNEL")
}

/// The identifier or number that a text begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    &text[..end]
}

/// A parameter of the macro that a text begins with.
fn parameter(text: &str, index: usize) -> &str {
    let parameters = text.split_once('(').map_or("", |(_, rest)| rest);
    parameters.split([',', ')']).nth(index).unwrap_or_default().trim()
}

fn without_comments(text: &str) -> String {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default().to_string() + "\n")
        .collect()
}
