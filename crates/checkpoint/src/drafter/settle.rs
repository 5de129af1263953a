//! What a drafter has beyond the first generation: keys and tensors must speak of the same parts.
//! Converters were seen to drop the tensors and keep the keys, which costs most of the acceptance
//! and shows nowhere else.

use super::claims::{Claims, ExtraClaims};
use super::slots;
use super::{BlockConv, Confidence, Dialect, Extras, Markov, Scales, Selector};
use crate::report::{Claim, Report};
use crate::{Error, caps};
use formats::{TensorInfo, Tensors};

/// Candidates of a position in every published DFlash 2 drafter.
const TOP_K: usize = 16;

/// The widest that a codebook may be; the published ones have 256 columns.
const RANK: usize = 1 << 12;

pub(super) fn settle(
    claims: &Claims,
    tensors: &Tensors,
    hidden: usize,
    block: usize,
    report: &mut Report,
) -> Result<Extras, Error> {
    let parts = Parts { claims, said: &claims.extras, tensors, hidden };
    let conv = parts.conv(block, report)?;
    let selector = parts.selector(report)?;
    let markov = parts.markov(report)?;
    let confidence = parts.confidence(markov, report)?;
    let sample_from_anchor = parts.sample_from_anchor(markov, report)?;
    let scales = parts.scales(report)?;
    let extras =
        Extras { conv, selector, markov, confidence, sample_from_anchor, scales, real_vocab: None };
    if let Some(named) = &claims.extras.named
        && named.value != extras.kind()
    {
        return Err(Error::Disagree {
            what: "the drafter's kind".into(),
            first: named.value.to_string(),
            first_from: named.from.clone(),
            second: extras.kind().to_string(),
            second_from: "its tensors: others were lost on the way; get the file again".into(),
        });
    }
    Ok(extras)
}

/// Two keys that come together, and the names they go by without a prefix.
struct Pair<'a> {
    what: &'static str,
    names: [&'static str; 2],
    claims: [&'a Option<Claim<usize>>; 2],
}

struct Parts<'a> {
    claims: &'a Claims,
    said: &'a ExtraClaims,
    tensors: &'a Tensors,
    hidden: usize,
}

impl<'a> Parts<'a> {
    fn find(&self, name: &str) -> Option<&'a TensorInfo> {
        slots::find(self.tensors, name)
    }

    /// The name a tensor should have in this file.
    fn spelled(&self, name: &str) -> String {
        match self.claims.dialect {
            Dialect::HuggingFace => slots::hf_name(name),
            _ => name.to_owned(),
        }
    }

    /// A tensor that must be a matrix.
    fn matrix(&self, tensor: &TensorInfo) -> Result<[usize; 2], Error> {
        match tensor.shape[..] {
            [rows, columns] if rows > 0 && columns > 0 => Ok([rows, columns]),
            _ => {
                let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
                Err(Error::NotMatrix { tensor, found })
            }
        }
    }

    /// What a pair of keys says, checked against a tensor that only such a part has. A file without
    /// any configuration is told by its tensors alone.
    fn agreed(&self, pair: Pair<'a>, tensor: &str) -> Result<Option<[&'a Claim<usize>; 2]>, Error> {
        let Pair { what, names, claims } = pair;
        let found = self.find(tensor);
        let there = |claim: &'a Option<Claim<usize>>| claim.as_ref().filter(|c| c.value > 0);
        let half = |one: &Claim<usize>, other: &'static str| {
            Err(Error::HalfPair { what, from: one.from.clone(), other })
        };
        match (there(claims[0]), there(claims[1])) {
            (Some(first), Some(second)) if found.is_some() => Ok(Some([first, second])),
            (Some(first), Some(_)) => Err(Error::LostPart {
                what,
                from: first.from.clone(),
                tensor: self.spelled(tensor),
            }),
            (Some(one), None) => half(one, names[1]),
            (None, Some(one)) => half(one, names[0]),
            (None, None) => match found {
                Some(tensor) if self.claims.dialect != Dialect::Bare => Err(Error::UnsaidPart {
                    what,
                    tensor: tensor.name.clone(),
                    keys: format!("`{}` and `{}`", names[0], names[1]),
                }),
                _ => Ok(None),
            },
        }
    }

    fn conv(&self, block: usize, report: &mut Report) -> Result<Option<BlockConv>, Error> {
        let pair = Pair {
            what: "convolutions",
            names: ["conv_kernel_size", "conv_group_size"],
            claims: [&self.said.conv_kernel, &self.said.conv_group],
        };
        let (kernel, group) = match self.agreed(pair, "blk.0.attn_conv_base")? {
            Some([kernel, group]) => (kernel.clone(), group.clone()),
            None => match self.conv_by_shape()? {
                Some([kernel, group]) => (kernel, group),
                None => return Ok(None),
            },
        };
        let invalid = |what, claim: &Claim<usize>, expected: String| Error::Invalid {
            what,
            value: claim.value.to_string(),
            from: claim.from.clone(),
            expected,
        };
        if kernel.value > block {
            let expected = format!("1 to {block}, the rows of a block,");
            return Err(invalid("convolution taps", &kernel, expected));
        }
        if !self.hidden.is_multiple_of(group.value) {
            let expected = format!("a divisor of {}, the hidden size,", self.hidden);
            return Err(invalid("channels of a convolution's group", &group, expected));
        }
        let conv = BlockConv { kernel: kernel.value, group: group.value };
        report.note("conv", &conv, format!("{} and {}", kernel.from, group.from));
        Ok(Some(conv))
    }

    /// Taps and groups as the tensors have them, for a file that says nothing.
    fn conv_by_shape(&self) -> Result<Option<[Claim<usize>; 2]>, Error> {
        let bases = (self.find("blk.0.attn_conv_base"), self.find("blk.0.attn_conv_proj.weight"));
        let (Some(base), Some(projection)) = bases else { return Ok(None) };
        let shape = |tensor: &TensorInfo| format!("shape of `{}`", tensor.name);
        let [2, kernel @ 1..=64, _] = base.shape[..] else {
            let expected = vec![2, 2, self.hidden];
            let (tensor, found) = (base.name.clone(), base.shape.clone());
            return Err(Error::Shape { tensor, found, expected });
        };
        let [rows, _] = self.matrix(projection)?;
        let group = 2 * kernel * self.hidden / rows;
        if group == 0 || 2 * kernel * self.hidden != rows * group {
            return Err(Error::Invalid {
                what: "coefficients of a convolution",
                value: rows.to_string(),
                from: shape(projection),
                expected: format!("a divisor of {}", 2 * kernel * self.hidden),
            });
        }
        Ok(Some([Claim::new(kernel, shape(base)), Claim::new(group, shape(projection))]))
    }

    fn selector(&self, report: &mut Report) -> Result<Option<Selector>, Error> {
        let pair = Pair {
            what: "a selector",
            names: ["selector_rank", "selector_top_k"],
            claims: [&self.said.selector_rank, &self.said.selector_top_k],
        };
        let codebook = "selector_predecessor.weight";
        let agreed = self.agreed(pair, codebook)?;
        let Some(tensor) = self.find(codebook) else { return Ok(None) };
        let [vocab, columns] = self.matrix(tensor)?;
        let (rank, top_k) = match agreed {
            Some([rank, top_k]) => (rank.clone(), top_k.clone()),
            None => (
                Claim::new(columns, format!("shape of `{}`", tensor.name)),
                Claim::new(TOP_K, "no key says it; 16 in every published DFlash 2 drafter"),
            ),
        };
        self.check_vocab(vocab, tensor)?;
        if top_k.value > vocab {
            return Err(Error::Invalid {
                what: "candidates of a position",
                value: top_k.value.to_string(),
                from: top_k.from,
                expected: format!("1 to {vocab}, the rows of `{}`,", tensor.name),
            });
        }
        let rank = Claim::new(self.rank(&rank)?, rank.from);
        let selector = Selector { rank: rank.value, top_k: top_k.value, vocab };
        let from = format!("{}, {} and rows of `{}`", rank.from, top_k.from, tensor.name);
        report.note("selector", &selector, from);
        Ok(Some(selector))
    }

    fn rank(&self, claim: &Claim<usize>) -> Result<usize, Error> {
        if claim.value <= RANK {
            return Ok(claim.value);
        }
        Err(Error::Invalid {
            what: "rank",
            value: claim.value.to_string(),
            from: claim.from.clone(),
            expected: format!("1 to {RANK}"),
        })
    }

    /// A codebook has a row for every token of the padded vocabulary.
    fn check_vocab(&self, rows: usize, tensor: &TensorInfo) -> Result<(), Error> {
        let from = format!("rows of `{}`", tensor.name);
        caps::dimension("vocabulary", &Claim::new(rows, from.clone()))?;
        match &self.claims.vocab {
            Some(said) if said.value != rows => {
                Err(Error::disagree("vocabulary", said.value, said.from.clone(), rows, from))
            }
            _ => Ok(()),
        }
    }

    fn markov(&self, report: &mut Report) -> Result<Option<Markov>, Error> {
        let said = self.said.markov_rank.as_ref().filter(|rank| rank.value > 0);
        let enabled = self.said.markov.as_ref().filter(|on| on.value);
        let name = "markov_w1.weight";
        let from = said.map(|rank| &rank.from).or(enabled.map(|on| &on.from));
        let tensor = match (self.find(name), from) {
            (None, None) => return Ok(None),
            (None, Some(from)) => {
                return Err(Error::LostPart {
                    what: "a Markov head",
                    from: from.clone(),
                    tensor: self.spelled(name),
                });
            }
            (Some(tensor), _) => tensor,
        };
        if let Some(selector) = self.find("selector_predecessor.weight") {
            let what = "a drafter with both a selector and a Markov head".to_owned();
            let from = format!("tensors `{}` and `{}`", selector.name, tensor.name);
            return Err(Error::Unsupported { what, from });
        }
        let [vocab, columns] = self.matrix(tensor)?;
        self.check_vocab(vocab, tensor)?;
        let shape = Claim::new(columns, format!("shape of `{}`", tensor.name));
        if let Some(said) = said.filter(|rank| rank.value != columns) {
            let from = said.from.clone();
            return Err(Error::disagree("Markov rank", said.value, from, columns, shape.from));
        }
        let markov = Markov { rank: self.rank(&shape)?, vocab };
        report.note("markov", &markov, shape.from);
        Ok(Some(markov))
    }

    fn confidence(
        &self,
        markov: Option<Markov>,
        report: &mut Report,
    ) -> Result<Option<Confidence>, Error> {
        let name = "conf_proj.weight";
        let (said, found) = (&self.said.confidence, self.find(name));
        let tensor = match (said.as_ref().filter(|c| c.value), found) {
            (Some(said), None) => {
                return Err(Error::LostPart {
                    what: "a confidence head",
                    from: said.from.clone(),
                    tensor: self.spelled(name),
                });
            }
            (_, None) => return Ok(None),
            (_, Some(tensor)) => tensor,
        };
        let width = tensor.elements();
        let rank = markov.map_or(0, |m| m.rank);
        let from = format!("shape of `{}`", tensor.name);
        let with_markov = if rank > 0 && width == self.hidden + rank {
            true
        } else if width == self.hidden {
            false
        } else {
            let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
            return Err(Error::Shape { tensor, found, expected: vec![1, self.hidden + rank] });
        };
        if let Some(said) =
            self.said.confidence_with_markov.as_ref().filter(|c| c.value != with_markov)
        {
            let what = "a confidence head that reads the Markov head";
            let first = said.from.clone();
            return Err(Error::disagree(what, said.value, first, with_markov, from));
        }
        let bias = self.find("conf_proj.bias").is_some();
        let confidence = Confidence { with_markov, bias };
        report.note("confidence", &confidence, from);
        Ok(Some(confidence))
    }

    /// DSpark's anchor row proposes unless the file says otherwise; DFlash's never does, whatever
    /// upstream's converter writes.
    fn sample_from_anchor(
        &self,
        markov: Option<Markov>,
        report: &mut Report,
    ) -> Result<bool, Error> {
        let said = self.said.sample_from_anchor.as_ref();
        if markov.is_none() {
            return match said.filter(|s| s.value && self.claims.dialect == Dialect::HuggingFace) {
                Some(said) => Err(Error::Unsupported {
                    what: "a DFlash drafter whose anchor row proposes".into(),
                    from: said.from.clone(),
                }),
                None => Ok(false),
            };
        }
        let silence = || Claim::new(true, "no key says it; DSpark's anchor row proposes");
        let claim = said.cloned().unwrap_or_else(silence);
        report.note("sample_from_anchor", &claim.value, claim.from);
        Ok(claim.value)
    }

    fn scales(&self, report: &mut Report) -> Result<Scales, Error> {
        let mut factor = |field, claim: &Option<Claim<f32>>| -> Result<f32, Error> {
            let Some(claim) = claim else { return Ok(1.0) };
            if !(claim.value.is_finite() && claim.value > 0.0) {
                return Err(Error::Invalid {
                    what: field,
                    value: claim.value.to_string(),
                    from: claim.from.clone(),
                    expected: "a finite number above 0".into(),
                });
            }
            report.note(field, &claim.value, claim.from.clone());
            Ok(claim.value)
        };
        let said = self.said;
        let embedding = factor("embedding_scale", &said.embedding_scale)?;
        let logits = factor("logit_scale", &said.logit_scale)?;
        // 0 is none.
        let cap = said.softcap.clone().filter(|cap| cap.value != 0.0);
        let softcap = cap.is_some().then(|| factor("softcap", &cap)).transpose()?;
        Ok(Scales { embedding, logits, softcap })
    }
}
