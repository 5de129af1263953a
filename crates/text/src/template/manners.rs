//! What a template makes of conversations that others refuse: found out once, by rendering such.

use super::{ChatTemplate, Prompt};
use serde_json::{Value, json};

/// Which conversations a template takes as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manners {
    /// Several system messages, and later ones, are rendered. Others refuse them or leave them out.
    pub system_anywhere: bool,
    /// A conversation in which the user has not said anything is refused.
    pub needs_user: bool,
}

impl Manners {
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let renders = |messages: &[Value], expected: &[&str]| {
            let text = template.render(&Prompt { messages, ..Prompt::default() });
            text.is_ok_and(|text| expected.iter().all(|words| text.contains(words)))
        };
        let several = [
            said("system", "probe one"),
            said("system", "probe two"),
            said("user", "hello"),
            said("assistant", "hello"),
            said("system", "probe three"),
            said("user", "go on"),
        ];
        let alone = &several[..1];
        Self {
            system_anywhere: renders(&several, &["probe one", "probe two", "probe three"]),
            needs_user: !renders(alone, &["probe one"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_template_takes_is_found_out() {
        let chatml = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}";
        let strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
            {{ raise_exception('late') }}{% endif %}{{ m.content }}{% endfor %}\
            {% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}\
            {{ raise_exception('no user') }}{% endif %}";
        let deaf = "{{ messages[0].content }}{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
        for (source, system_anywhere, needs_user) in
            [(chatml, true, false), (strict, false, true), (deaf, false, false)]
        {
            let template = ChatTemplate::new(source).expect("parses");
            assert_eq!(template.manners(), Manners { system_anywhere, needs_user }, "{source}");
        }
    }
}
