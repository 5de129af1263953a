//! Regular expressions, choices and grammars against texts that fit and texts that do not.

use super::tests::{takes, tokenizer};
use super::*;

fn of(grammars: &Grammars, form: Form<'_>, thinking: bool) -> Result<Grammar, GrammarError> {
    grammars.grammar(&Shape { answer: Some(form), thinking, ..Shape::default() })
}

#[test]
fn regular_expressions_fit_from_beginning_to_end() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    for (regex, fit, unfit) in [
        (r"\d{3}-\d{4}", vec!["555-1234"], vec!["555-123", "x555-1234", "٣٣٣-1234", ""]),
        ("^(yes|no)$", vec!["yes", "no"], vec!["maybe", "yesno"]),
        ("^foo$|^bar$|^", vec!["foo", "bar", ""], vec!["foobar", "foo$"]),
        (r"^[|$]x$|^\(\|$", vec!["|x", "$x", "(|"], vec!["x", "(", "|"]),
        (r"a/b\/c", vec!["a/b/c"], vec!["a/b"]),
        ("[a-z]*", vec!["", "abc"], vec!["A"]),
        (r"cost: \$", vec!["cost: $"], vec!["cost: "]),
        ("line\none", vec!["line\none"], vec!["line one"]),
        ("(é|👋)+", vec!["é👋"], vec!["e"]),
        ("", vec![""], vec!["a"]),
    ] {
        let grammar =
            of(&grammars, Form::Regex(regex), false).unwrap_or_else(|e| panic!("{regex}: {e}"));
        fit.iter().for_each(|text| assert!(takes(&grammar, &tokenizer, text), "{regex}: {text}"));
        unfit
            .iter()
            .for_each(|text| assert!(!takes(&grammar, &tokenizer, text), "{regex}: {text}"));
    }
    let thought = of(&grammars, Form::Regex("[ab]+"), true).unwrap();
    assert!(takes(&thought, &tokenizer, "hm</think>\n\nabba"));
    assert!(!takes(&thought, &tokenizer, "hm</think>\n\nabc"));
    for regex in ["(", "(?=a)b", r"(a)\1", "[z-a]", "a{5,2}", "^(a$|b)c$"] {
        let error = of(&grammars, Form::Regex(regex), false).err();
        assert!(matches!(error, Some(GrammarError::Refused { .. })), "{regex}: {error:?}");
    }
}

#[test]
fn a_choice_may_begin_with_another() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let choices = ["yes", "yes, please", "no \"thanks\"", "\u{7f}\n"].map(str::to_owned);
    let grammar = of(&grammars, Form::Choice(&choices), false).unwrap();
    choices.iter().for_each(|choice| assert!(takes(&grammar, &tokenizer, choice), "{choice}"));
    ["ye", "yes,", "no", ""]
        .iter()
        .for_each(|text| assert!(!takes(&grammar, &tokenizer, text), "{text}"));
    assert!(of(&grammars, Form::Choice(&[]), false).is_err());
}

const SUMS: &str = "?start: sum\nsum: product | sum \"+\" product\nproduct: atom | product \"*\" atom\n\
    atom: NUMBER | \"(\" sum \")\"\nNUMBER: /[0-9]+/\n%ignore / +/\n";

const JSON: &str = r#"
# llama.cpp's way to say JSON
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn grammars_in_both_notations() {
    let tokenizer = tokenizer();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let moves = "root ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" \" move \"\\n\")+\n\
        move ::= (pawn | nonpawn | castle) [+#]?\npawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n\
        nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\ncastle ::= \"O-O\" \"-O\"?";
    for (text, fit, unfit) in [
        (SUMS, vec!["1", "1+2*(3 + 4)"], vec!["", "1+", "(1", "a"]),
        (
            JSON,
            vec!["{}", r#"{"a":[1,{"b":"é\n"}], "c": -1.5e3}"#, "{ }"],
            vec!["[]", "{\"a\"}", "{\"a\":01}"],
        ),
        ("root ::= \"yes\" | \"no\"", vec!["yes", "no"], vec!["maybe", ""]),
        ("root ::= \"a\\x7F\"", vec!["a\u{7f}"], vec!["a"]),
        ("root ::= [a-z]+ \"abc\"", vec!["xabc", "ababdabc"], vec!["abc", "abcd"]),
        (
            "root ::= a\na ::= \"(\" a \")\" | \"x\"{2,3}",
            vec!["((xx))", "xxx"],
            vec!["(xx", "x", "xxxx"],
        ),
        ("root ::= .{2} [^\\n]", vec!["é\nx", "👋👋👋"], vec!["ab\n", "ab"]),
        (
            moves,
            vec!["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n10. O-O O-O-O+\n"],
            vec!["1. e4 e5\n", "2. e4"],
        ),
    ] {
        let grammar =
            of(&grammars, Form::Grammar(text), false).unwrap_or_else(|e| panic!("{text}: {e}"));
        fit.iter().for_each(|fits| assert!(takes(&grammar, &tokenizer, fits), "{text}: {fits}"));
        unfit.iter().for_each(|fits| assert!(!takes(&grammar, &tokenizer, fits), "{text}: {fits}"));
    }
}

#[test]
fn what_is_wrong_in_a_grammar_is_said() {
    let grammars = Grammars::new(&tokenizer()).unwrap();
    for (text, word) in [
        ("", "grammar"),
        ("hello", "grammar"),
        ("start: other", "other"),
        ("root ::= other", "not defined"),
        ("a ::= \"x\"", "root"),
        ("root ::= \"x", "line 1"),
        ("root ::= \"x\"\nx = 3", "line 2: `::=`"),
        ("root ::= [z-a]", "range"),
        ("root ::= \"a\"{3,1}", "less than the least"),
        ("root ::= \"a\"{99999999999}", "too large"),
        ("root ::= <think>", "tokens"),
        ("root ::= (\"a\"", "`)`"),
        ("root ::= \"\\q\"", "escape"),
        ("root ::= \"\\ud800\"", "no character"),
        ("root ::= root", "nothing fits"),
        ("start: <[*]> %json {}", "%json"),
    ] {
        let error = of(&grammars, Form::Grammar(text), false).expect_err(text).to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}
