//! Quantised checkpoints: which tensors of a file are one weight together, by what a folder's
//! configuration says and by their names, types and shapes. A method that is not read is refused by
//! its name before any tensor is looked at.

mod integers;
mod names;

use crate::report::Report;
use crate::{Error, Json};
use formats::{Assembly, BlockType, Grid, RawTensor, TensorInfo, Tensors};
use names::{List, OTHERS, is_fused, split};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Methods whose folders are read.
const METHODS: [&str; 5] = ["fp8", "modelopt", "compressed-tensors", "awq", "gptq"];

/// Where a configuration says how it was quantised.
const KEYS: [&str; 5] = [
    "quantization_config",
    "text_config.quantization_config",
    "compression_config",
    crate::source::BESIDE,
    "quantization",
];

/// Puts the weights of a quantised folder together; another folder is left as it is.
pub(crate) fn read(root: &Json, tensors: Tensors, report: &mut Report) -> Result<Tensors, Error> {
    let Some(key) = KEYS.into_iter().find(|key| root.get(key).is_some()) else {
        return Ok(tensors);
    };
    let method = root.string(&format!("{key}.quant_method"))?;
    // MLX says how many bits and no method.
    let is_mlx = method.is_none() && root.get(&format!("{key}.bits")).is_some();
    let method = method.unwrap_or(if is_mlx { "mlx" } else { "none" });
    let from = format!("`{key}{}`", if is_mlx { "" } else { ".quant_method" });
    if !METHODS.contains(&method) {
        let what = format!(
            "a checkpoint quantised by `{method}` (read are {}; a GGUF of the model, or the folder \
             before it was quantised, would do)",
            METHODS.map(|m| format!("`{m}`")).join(", ")
        );
        return Err(Error::Unsupported { what, from });
    }
    let config = Config { root, key, method };
    config.check()?;
    let (made, spent) = Folder { config: &config, tensors: &tensors }.assemble()?;
    let mut types = BTreeSet::new();
    types.extend(made.iter().map(|(.., assembly)| assembly.ty().name()));
    let types: Vec<&str> = types.into_iter().collect();
    report.note(
        "quantised",
        &format!("{method}, {} matrices: {}", made.len(), types.join(", ")),
        from,
    );
    Ok(tensors.assembled(made, &spent))
}

/// Puts the NVFP4 weights of a GGUF together with the scales of whole tensors that lie beside them.
pub(crate) fn with_scales(tensors: Tensors) -> Result<Tensors, Error> {
    let (mut made, mut spent) = (Vec::new(), HashSet::new());
    for tensor in tensors.iter().filter(|t| t.ty == BlockType::NVFP4) {
        let Some(module) = tensor.name.strip_suffix(".weight") else { continue };
        spent.extend(tensors.get(&format!("{module}.input_scale")).map(|t| t.name.clone()));
        let Some(beside) = tensors.get(&format!("{module}.scale")) else { continue };
        let matrices = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
        let is_right = beside.elements() == matrices && beside.ty.block_len() == 1;
        let cols = tensor.shape.last().copied().unwrap_or(0);
        if !is_right || !cols.is_multiple_of(128) {
            return Err(Error::Shape {
                tensor: beside.name.clone(),
                found: beside.shape.clone(),
                expected: vec![matrices],
            });
        }
        let mut scales = vec![0.0; matrices];
        formats::blocks::decode(beside.ty, tensors.data(beside), &mut scales);
        if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
            return Err(bad_scale(&beside.name, *scale));
        }
        spent.extend([tensor.name.clone(), beside.name.clone()]);
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        made.push((name, shape, Assembly::Scaled { blocks: tensor.clone(), scales }));
    }
    Ok(if spent.is_empty() { tensors } else { tensors.assembled(made, &spent) })
}

/// What the configuration says.
struct Config<'a> {
    root: &'a Json,
    key: &'static str,
    method: &'a str,
}

impl Config<'_> {
    fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.key)
    }

    fn unsupported(&self, what: String, name: &str) -> Error {
        Error::Unsupported { what, from: format!("`{}`", self.path(name)) }
    }

    /// Refuses what is said of all modules and cannot be read.
    fn check(&self) -> Result<(), Error> {
        let text = |name: &str| self.root.string(&self.path(name));
        match self.method {
            "fp8" => {
                if let Some(format) = text("fmt")?.filter(|f| *f != "e4m3") {
                    return Err(self.unsupported(format!("the 8-bit float `{format}`"), "fmt"));
                }
                let block = self.root.integers(&self.path("weight_block_size"))?;
                if let Some(block) = block.filter(|b| b[..] != [128, 128]) {
                    let what = format!("a scale for {block:?} elements (128 by 128 is read)");
                    return Err(self.unsupported(what, "weight_block_size"));
                }
            }
            "modelopt" => {
                let algorithm = text("quant_algo")?.unwrap_or("NVFP4");
                if !["FP8", "NVFP4", "MIXED_PRECISION"].contains(&algorithm) {
                    let what = format!("the algorithm `{algorithm}` of modelopt");
                    return Err(self.unsupported(what, "quant_algo"));
                }
            }
            "awq" | "gptq" => {
                let bits = self.root.integer(&self.path("bits"))?.unwrap_or(4);
                if bits != 4 {
                    let what = format!("`{}` of {bits} bits (4 are read)", self.method);
                    return Err(self.unsupported(what, "bits"));
                }
                if self.root.bool(&self.path("desc_act"))? == Some(true) {
                    let what = "GPTQ with act-order (quantise with `desc_act` false, or take AWQ)"
                        .to_owned();
                    return Err(self.unsupported(what, "desc_act"));
                }
                if let Some(version) = text("version")?.filter(|v| !v.eq_ignore_ascii_case("gemm"))
                    && self.method == "awq"
                {
                    let what = format!("AWQ in the layout `{version}` (`gemm` is read)");
                    return Err(self.unsupported(what, "version"));
                }
                if self.method == "awq" && self.root.bool(&self.path("zero_point"))? == Some(false)
                {
                    let what = "AWQ without zero points".to_owned();
                    return Err(self.unsupported(what, "zero_point"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Modules that are said not to be quantised: names, ends of names, or `re:` and a pattern.
    fn ignored(&self) -> Result<List, Error> {
        for name in ["ignore", "modules_to_not_convert", "exclude_modules"] {
            if let Some(list) = self.root.strings(&self.path(name))? {
                return Ok(List::new(&list));
            }
        }
        Ok(List::default())
    }
}

type Made = (Vec<(String, Vec<usize>, Assembly)>, HashSet<String>);

/// A folder's tensors by module.
struct Folder<'a> {
    config: &'a Config<'a>,
    tensors: &'a Tensors,
}

/// The tensors of one module, by the end of their name.
struct Module<'a> {
    name: &'a str,
    config: &'a Config<'a>,
    tensors: &'a Tensors,
    raw: HashMap<&'a str, &'a RawTensor>,
    floats: HashMap<&'a str, &'a TensorInfo>,
}

impl Folder<'_> {
    fn assemble(&self) -> Result<Made, Error> {
        let mut modules: HashMap<&str, Module<'_>> = HashMap::new();
        let module = |name| Module {
            name,
            config: self.config,
            tensors: self.tensors,
            raw: HashMap::new(),
            floats: HashMap::new(),
        };
        for tensor in self.tensors.raw() {
            if let Some((name, end)) = split(&tensor.name) {
                modules.entry(name).or_insert_with(|| module(name)).raw.insert(end, tensor);
            }
        }
        for tensor in self.tensors {
            if let Some((name, end)) = split(&tensor.name) {
                modules.entry(name).or_insert_with(|| module(name)).floats.insert(end, tensor);
            }
        }
        let ignored = self.config.ignored()?;
        let (mut made, mut spent) = (Vec::new(), HashSet::new());
        let mut sorted: Vec<_> = modules.into_values().collect();
        sorted.sort_by_key(|module| module.name);
        for module in sorted {
            let is_vision = module.name.contains("visual.");
            for end in OTHERS {
                let names =
                    [module.raw.get(end).map(|t| &t.name), module.floats.get(end).map(|t| &t.name)];
                spent.extend(names.into_iter().flatten().cloned());
            }
            if is_vision {
                spent.extend(module.raw.values().map(|t| t.name.clone()));
                continue;
            }
            let Some(assembly) = module.assembly()? else { continue };
            if ignored.has(module.name) {
                let from = format!("`{}`", self.config.key);
                return Err(Error::disagree(
                    format!("the type of `{}`", module.name),
                    "not quantised",
                    from,
                    assembly.ty().name(),
                    "its tensors",
                ));
            }
            spent.extend(module.raw.values().map(|t| t.name.clone()));
            let scales = module.floats.iter().filter(|(end, _)| **end != "weight");
            spent.extend(scales.map(|(_, t)| t.name.clone()));
            made.push(module.made(assembly));
        }
        Ok((made, spent))
    }
}

impl<'a> Module<'a> {
    /// Its weight's name and shape beside how it is put together. Experts in one tensor have the
    /// rows of all of them, one expert after the other.
    fn made(&self, assembly: Assembly) -> (String, Vec<usize>, Assembly) {
        let folded = assembly.shape();
        let stored = self.raw.get("weight").or(self.raw.get("weight_packed"));
        let shape = match stored.map(|tensor| &tensor.shape[..]) {
            Some([experts, rows, _]) => vec![*experts, *rows, folded[1]],
            _ => folded,
        };
        let end = if is_fused(self.name) { "" } else { ".weight" };
        (format!("{}{end}", self.name), shape, assembly)
    }

    /// How its weight is put together; nothing where it is not quantised.
    fn assembly(&self) -> Result<Option<Assembly>, Error> {
        if self.raw.contains_key("qweight") {
            return integers::packed_by_columns(self).map(Some);
        }
        if let Some(packed) = self.raw.get("weight_packed") {
            return match packed.dtype.as_str() {
                "U8" => self.small_floats(packed).map(Some),
                "I32" => integers::compressed(self, packed).map(Some),
                _ => Err(self.wrong_type(packed, "U8 or I32")),
            };
        }
        let Some(weight) = self.raw.get("weight") else { return Ok(None) };
        match weight.dtype.as_str() {
            "F8_E4M3" if self.raw.contains_key("weight_scale") => Err(self.config.unsupported(
                "MXFP8 (a power of two for 32 numbers; FP8, NVFP4 and MXFP4 are read)".to_owned(),
                "format",
            )),
            "F8_E4M3" => {
                let shape = rows_of_all(weight)?;
                self.whole(shape[1], 128, weight)?;
                let scales = self.grid(shape)?;
                Ok(Some(Assembly::Fp8 { codes: (*weight).clone(), scales, shape }))
            }
            "U8" => self.small_floats(weight).map(Some),
            "I8" => {
                let shape = rows_of_all(weight)?;
                self.whole(shape[1], 128, weight)?;
                integers::no_zeros(self)?;
                let scales = self.grid(shape)?;
                let codes = (*weight).clone();
                Ok(Some(Assembly::Int8 { codes, packed: false, scales, shape }))
            }
            _ => Err(self.wrong_type(weight, "F8_E4M3, I8 or U8")),
        }
    }

    /// NVFP4 and MXFP4: two codes a byte.
    fn small_floats(&self, codes: &RawTensor) -> Result<Assembly, Error> {
        let [rows, half] = rows_of_all(codes)?;
        let shape = [rows, 2 * half];
        let scales = self.raw("weight_scale")?;
        if scales.dtype == "U8" {
            self.whole(shape[1], 32, codes)?;
            expect(scales, &[rows, shape[1] / 32])?;
            let (codes, exponents) = (codes.clone(), scales.clone());
            return Ok(Assembly::Mxfp4 { codes, exponents, shape });
        }
        if scales.dtype != "F8_E4M3" {
            return Err(self.wrong_type(scales, "F8_E4M3 or U8"));
        }
        self.whole(shape[1], 128, codes)?;
        expect(scales, &[rows, shape[1] / 16])?;
        // modelopt multiplies by the tensor's scale, compressed-tensors divides.
        let scale = match self.floats.get("weight_scale_2") {
            Some(tensor) => self.number(tensor)?,
            None => {
                let tensor = self.float("weight_global_scale")?;
                let divisor = self.number(tensor)?;
                if divisor == 0.0 {
                    return Err(bad_scale(&tensor.name, divisor));
                }
                1.0 / divisor
            }
        };
        let (codes, scales) = (codes.clone(), scales.clone());
        Ok(Assembly::Fp4 { codes, scales, scale, shape })
    }

    /// Scales of a tensor, of rows, or of squares.
    fn grid(&self, [rows, cols]: [usize; 2]) -> Result<Grid, Error> {
        let found =
            ["weight_scale_inv", "weight_scale"].into_iter().find_map(|e| self.floats.get(e));
        let name = format!("{}.weight_scale", self.name);
        let tensor = *found.ok_or(Error::MissingTensor(name))?;
        self.check_finite(tensor)?;
        let experts = match self.raw.get("weight").map(|weight| &weight.shape[..]) {
            Some([experts, _, _]) => *experts,
            _ => 1,
        };
        let (each_row, each_col) = match folded(&tensor.shape)[..] {
            [] | [1] | [1, 1] => (rows, cols),
            [n] | [n, 1] if n == experts => (rows / experts, cols),
            [n] | [n, 1] if n == rows => (1, cols),
            [r, c] if r == rows.div_ceil(128) && c == cols.div_ceil(128) => (128, 128),
            [r, c] if r == rows && c > 0 => (1, cols / c),
            _ => (0, 0),
        };
        let is_whole = each_col == cols || (each_col > 0 && each_col.is_multiple_of(128));
        let fits = each_row > 0
            && is_whole
            && tensor.elements() == rows.div_ceil(each_row) * cols.div_ceil(each_col);
        if !fits {
            return Err(Error::Shape {
                tensor: tensor.name.clone(),
                found: tensor.shape.clone(),
                expected: vec![rows.div_ceil(128), cols.div_ceil(128)],
            });
        }
        Ok(Grid { tensor: tensor.clone(), rows: each_row, cols: each_col })
    }

    fn raw(&self, end: &str) -> Result<&'a RawTensor, Error> {
        let missing = || Error::MissingTensor(format!("{}.{end}", self.name));
        self.raw.get(end).copied().ok_or_else(missing)
    }

    fn float(&self, end: &str) -> Result<&'a TensorInfo, Error> {
        let missing = || Error::MissingTensor(format!("{}.{end}", self.name));
        self.floats.get(end).copied().ok_or_else(missing)
    }

    fn numbers(&self, tensor: &TensorInfo) -> Vec<f32> {
        let mut numbers = vec![0.0; tensor.elements()];
        formats::blocks::decode(tensor.ty, self.tensors.data(tensor), &mut numbers);
        numbers
    }

    /// The one number of a tensor.
    fn number(&self, tensor: &TensorInfo) -> Result<f32, Error> {
        self.check_finite(tensor)?;
        match self.numbers(tensor)[..] {
            [number] => Ok(number),
            _ => Err(Error::Shape {
                tensor: tensor.name.clone(),
                found: tensor.shape.clone(),
                expected: vec![1],
            }),
        }
    }

    fn check_finite(&self, tensor: &TensorInfo) -> Result<(), Error> {
        match self.numbers(tensor).into_iter().find(|scale| !scale.is_finite()) {
            Some(scale) => Err(bad_scale(&tensor.name, scale)),
            None => Ok(()),
        }
    }

    /// Rows must be whole blocks.
    fn whole(&self, cols: usize, block: usize, tensor: &RawTensor) -> Result<(), Error> {
        if cols > 0 && cols.is_multiple_of(block) {
            return Ok(());
        }
        Err(Error::Invalid {
            what: "the length of a quantised row",
            value: cols.to_string(),
            from: format!("tensor `{}`", tensor.name),
            expected: format!("a multiple of {block}"),
        })
    }

    fn wrong_type(&self, tensor: &RawTensor, expected: &str) -> Error {
        Error::Invalid {
            what: "a tensor's type",
            value: tensor.dtype.clone(),
            from: format!(
                "`{}` of a checkpoint quantised by `{}`",
                tensor.name, self.config.method
            ),
            expected: expected.to_owned(),
        }
    }
}

fn bad_scale(tensor: &str, scale: f32) -> Error {
    Error::Invalid {
        what: "a scale",
        value: scale.to_string(),
        from: format!("tensor `{tensor}`"),
        expected: "a finite number".to_owned(),
    }
}

/// The shape of a matrix, or of the rows of all experts.
fn rows_of_all(tensor: &RawTensor) -> Result<[usize; 2], Error> {
    pair(tensor, &folded(&tensor.shape))
}

/// A shape with the experts' axis and the rows' as one.
fn folded(shape: &[usize]) -> Vec<usize> {
    match shape {
        [experts, rows, cols] => vec![experts.saturating_mul(*rows), *cols],
        other => other.to_vec(),
    }
}

fn matrix(tensor: &RawTensor) -> Result<[usize; 2], Error> {
    pair(tensor, &tensor.shape)
}

fn pair(tensor: &RawTensor, shape: &[usize]) -> Result<[usize; 2], Error> {
    let wrong = || Error::NotMatrix { tensor: tensor.name.clone(), found: tensor.shape.clone() };
    let shape = <[usize; 2]>::try_from(shape).map_err(|_| wrong())?;
    if shape.contains(&0) { Err(wrong()) } else { Ok(shape) }
}

fn expect(tensor: &RawTensor, expected: &[usize]) -> Result<(), Error> {
    if folded(&tensor.shape) == expected {
        return Ok(());
    }
    Err(Error::Shape {
        tensor: tensor.name.clone(),
        found: tensor.shape.clone(),
        expected: expected.to_vec(),
    })
}
