#!/usr/bin/env python3
"""Makes the goldens of chat templates, tests/golden/templates.

jinja2, set up exactly as transformers sets it up (an immutable sandbox, trim_blocks, lstrip_blocks, break and continue,
its tojson, raise_exception, strftime_now, generation blocks), renders

- language.json: small templates, one for each thing that the language has;
- cases.json: conversations in the templates of the same folder (NAME.jinja), which are written in the style of published
  ones: with system messages, tools, answers that have begun, thinking on and off, orders that a template refuses.

Each row has the variables and the text; "text": null where jinja2 refuses. The clock stands at 2026-01-02 12:00.

Needs: tools/python-env jinja
Usage: tools/make-template-goldens.py [FOLDER]        tests/golden/templates
"""
import copy
import datetime
import json
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from python_env import need
need("jinja", "jinja2")
import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 1, 2, 12, 0)


class Generation(jinja2.ext.Extension):
    """{% generation %}: as in transformers, but for the spans that it records."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(source, variables):
    try:
        return environment().from_string(source).render(**copy.deepcopy(variables))
    except Exception:
        return None


VARIABLES = {
    "n": 7, "x": 2.5, "yes": True, "no": False, "nothing": None, "text": "  Grüße, Wörld\n", "word": "winnow",
    "list": [3, 1, 2], "words": ["b", "A", "c", "b"], "empty": [], "dict": {"b": 1, "a": [1, 2], "c": None},
    "people": [{"name": "Ann", "age": 30, "tags": {"k": "v"}}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 41, "tags": {}}],
    "quoted": "it's \"so\" \\ é\t\u0001", "floats": [1.0, 0.1, 1e20, 1e-7, 123456.789, -0.0, 1e16, 3.0e-5],
}
LANGUAGE = r'''
{{ n }} {{ x }} {{ yes }} {{ no }} {{ nothing }} {{ list }} {{ dict }} {{ empty }} {{ words }}
{{ floats }}
{{ quoted }} {{ [quoted, "a'b"] }}
{{ missing }}|{{ missing is defined }}|{{ dict.zzz }}|{{ dict['a'] }}|{{ dict.b }}
{{ missing.x }}
{{ dict.zzz.y }}
{{ nothing.x }}
{{ missing + 1 }}
{{ 'a' + 1 }}
{{ missing ~ 'a' ~ 1 ~ none ~ true ~ 1.0 }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 ** 2 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** -1 }}
{{ 1 / 0 }}
{{ 5 % 0 }}
{{ -n }} {{ +n }} {{ -x }} {{ - -n }} {{ not n }} {{ not not n }} {{ -n|abs }} {{ (-n)|abs }}
{{ 'ab' * 3 }} {{ [1, 2] * 2 }} {{ 'a' * -1 }} {{ [1] + [2] }} {{ (1, 2) + (3,) }} {{ (1,) }} {{ () }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' == 'a' }} {{ [1] == [1.0] }} {{ {'a': 1} == {'a': 1} }} {{ (1,) == [1] }} {{ none == missing }} {{ missing == missing2 }}
{{ 1 < 2 < 3 }} {{ 1 < 3 > 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }} {{ 3 >= 3 }} {{ 'é' > 'z' }}
{{ 1 < 'a' }}
{{ missing < 1 }}
{{ 1 in list }} {{ 9 not in list }} {{ 'nn' in word }} {{ '' in word }} {{ 'a' in dict }} {{ 'a' in missing }} {{ 'q' in people[0] }}
{{ 1 in 5 }}
{{ 1 in 'abc' }}
{{ yes and n }} {{ no and n }} {{ no or '' or n }} {{ empty or 'none' }} {{ nothing or missing }}|
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} {{ 'a' if no }}| {{ 1 if no else 2 if no else 3 }}
{{ text|trim }}|{{ word|upper }}|{{ 'ÀÉß'|lower }}|{{ 'straße été'|title }}|{{ "they're bill's" | title }}|{{ 'hELLO wORLD'|capitalize }}
{{ "they're bill's x-y (z)".title() }} {{ "they're bill's x-y (z)"|title }} {{ 'abc DEF'.capitalize() }} {{ 'é'.upper() }}
{{ '--a-b--'.strip('-') }} {{ 'xyabyx'.lstrip('xy') }} {{ 'xyabyx'.rstrip('xy') }} {{ '  a '.lstrip() }}|{{ ' \u00a0\u2003a\u3000'.strip() }}|{{ 'ééaé'.strip('é') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b  c '.split(none, 1) }} {{ 'a<think>b'.split('<think>')[-1] }} {{ ''.split() }} {{ ''.split(',') }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('z') }} {{ 'abc'.rpartition('z') }}
{{ word.startswith('win') }} {{ word.startswith(('a', 'w')) }} {{ word.endswith('now') }} {{ word.find('n') }} {{ word.rfind('n') }} {{ word.find('z') }} {{ 'éxn'.find('n') }} {{ word.count('n') }} {{ word.index('o') }}
{{ word.index('z') }}
{{ word.replace('n', 'NN') }} {{ word.replace('n', '', 1) }} {{ word|replace('n', 'm') }} {{ 'ab'.replace('', '-') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'é-é'.replace('', '.') }}
{{ word.removeprefix('win') }} {{ word.removesuffix('now') }} {{ '123'.isdigit() }} {{ '12a'.isdigit() }} {{ 'abc'.isalpha() }} {{ 'ab1'.isalnum() }} {{ ' '.isspace() }} {{ ''.isdigit() }}
{{ ', '.join(words) }} {{ words|join('-') }} {{ people|join(',', attribute='name') }} {{ list|join }} {{ 'abc'|join('.') }}
{{ ', '.join(list) }}
{{ word.nosuch() }}
{{ nosuch() }}
{{ word() }}
{{ 'Grüße'[2] }} {{ 'Grüße'[1:3] }} {{ 'Grüße'[::-1] }} {{ 'Grüße'[-2:] }} {{ 'Grüße'[:-2] }} {{ 'Grüße'[10] }}| {{ 'Grüße'[5:2] }}|{{ word[4:0:-2] }}|{{ word[::2] }}|{{ word[-100:100] }}|{{ word[100::-1] }}
{{ list[0] }} {{ list[-1] }} {{ list[1:] }} {{ list[::-1] }} {{ list[:-1] }} {{ list[5] }}| {{ list[-9:2] }} {{ [0,1,2,3,4,5][::2] }} {{ [0,1,2,3,4,5][-1:0:-2] }} {{ (1,2,3)[1:] }} {{ list.0 }}
{{ list[::0] }}
{{ list['a'] }}|{{ dict[1] }}|{{ n[0] }}|{{ n.foo }}|
{{ words|length }} {{ 'Grüße'|length }} {{ dict|length }} {{ missing|length }} {{ words|count }}
{{ n|length }}
{{ words|first }} {{ words|last }} {{ empty|first }}| {{ 'abc'|first }} {{ 'abc'|last }} {{ words|reverse|list }} {{ 'abc'|reverse }}
{{ words|sort }} {{ words|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ words|unique|list }} {{ ['a','A']|unique|list }} {{ list|min }} {{ list|max }} {{ list|sum }} {{ people|sum(attribute='age') }} {{ [1.5, 2]|sum }}
{{ people|map(attribute='name')|list }} {{ words|map('upper')|list }} {{ people|map(attribute='tags.k', default='-')|list }} {{ words|map('replace', 'b', 'x')|list }}
{{ people|selectattr('age', 'gt', 28)|map(attribute='name')|list }} {{ people|selectattr('tags')|list|length }} {{ people|rejectattr('name', 'equalto', 'bob')|list|length }} {{ people|selectattr('tags', 'defined')|list|length }} {{ people|selectattr('name', 'in', ['Ann', 'Cy'])|list|length }}
{{ list|select('odd')|list }} {{ list|reject('odd')|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ [1, 'a']|select('string')|list }} {{ list|select('>', 1)|list }}
{{ dict|items|list }} {{ dict.items()|list }} {{ dict.keys()|list }} {{ dict.values()|list }} {{ dict|dictsort }} {{ {'b': 1, 'A': 2}|dictsort }} {{ dict.get('b') }} {{ dict.get('z') }} {{ dict.get('z', 5) }} {{ missing|items|list }}
{{ dict|list }} {{ 'abc'|list }} {{ (1, 2)|list }}
{{ missing|default('d') }} {{ nothing|default('d') }} {{ ''|default('d', true) }} {{ missing|d }}| {{ no|default(3, boolean=true) }}
{{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.9|int }} {{ '3.7'|int }} {{ ' 4 '|int }} {{ true|int }} {{ '2.5'|float }} {{ 'y'|float }} {{ 3|float }} {{ n|string + '!' }} {{ none|string }}
{{ 2.567|round(1) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(method='ceil') }} {{ 2.19|round(1, 'floor') }} {{ 7|round }} {{ -3|abs }} {{ -2.5|abs }} {{ 42.55|round(1) }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb\n\nc'|indent(2, true) }}|{{ 'a\nb\n\nc'|indent(2, blank=true) }}|{{ 'a\nb\n'|indent(2) }}|{{ 'a\nb'|indent('> ') }}|{{ ''|indent(2) }}|
{{ dict|tojson }} {{ quoted|tojson }} {{ people|tojson }} {{ 'Grüße <&>'|tojson }} {{ x|tojson }} {{ none|tojson }} {{ yes|tojson }} {{ [1.0, 1e20, 1e-7]|tojson }} {{ (1, 'a')|tojson }} {{ {1: 2, true: 3}|tojson }}
{{ dict|tojson(indent=2) }} {{ people|tojson(indent=4) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ {'a': []}|tojson(indent=2) }} {{ dict|tojson(separators=(',', ':')) }} {{ dict|tojson(sort_keys=true) }}
{{ missing|tojson }}
{{ n is defined }} {{ n is number }} {{ x is number }} {{ x is integer }} {{ n is integer }} {{ x is float }} {{ yes is number }} {{ yes is boolean }} {{ n is boolean }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ nothing is none }} {{ word is string }} {{ list is sequence }} {{ word is sequence }} {{ dict is sequence }} {{ dict is mapping }} {{ list is mapping }} {{ list is iterable }} {{ n is iterable }} {{ word is iterable }}
{{ n is odd }} {{ n is even }} {{ 6 is divisibleby 3 }} {{ n is eq 7 }} {{ n is equalto(7) }} {{ n is ne 7 }} {{ n is gt 3 }} {{ n is lt(3) }} {{ n is in list }} {{ 1 is in(list) }} {{ n is not none }} {{ not n is none }} {{ 'a' is in 'abc' }} {{ 'AB' is upper }} {{ 'ab' is lower }} {{ missing is undefined }} {{ raise_exception is callable }} {{ none is sameas none }}
{{ n is nosuch }}
{{ n|nosuch }}
{{ missing is sequence }} {{ missing is iterable }} {{ missing is string }} {{ missing is none }}
{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}|{{ loop.nextitem }} {{ loop.cycle('a', 'b') }} {% endfor %}
{% for i in empty %}x{% else %}none{% endfor %} {% for i in missing %}x{% else %}none{% endfor %} {% for c in 'aé' %}[{{ c }}]{% endfor %} {% for k in dict %}{{ k }}{% endfor %}
{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %} {% for k, v in dict|dictsort %}{{ k }}={{ v }};{% endfor %} {% for (a, b) in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}
{% for a, b in [(1, 2, 3)] %}x{% endfor %}
{% for i in n %}x{% endfor %}
{% for p in people if p.age > 28 %}{{ loop.index }}/{{ loop.length }} {{ p.name }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ range(3)|list }} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {% for i in range(2, 4) %}{{ i }}{% endfor %}
{% for i in [1, 2] %}{% for j in 'ab' %}{{ loop.index }}{{ i }}{{ j }}{{ loop.depth }} {% endfor %}{{ loop.index }}{% endfor %}
{% set a = 1 %}{% for i in list %}{% set a = i %}{{ a }}{% endfor %}{{ a }} {% if yes %}{% set a = 5 %}{% endif %}{{ a }} {% set b, c = 1, 2 %}{{ b }}{{ c }} {% set d = 1, 2 %}{{ d }}
{% set ns = namespace(found=false, n=0) %}{% for i in list %}{% set ns.n = ns.n + i %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }} {{ ns.found }} {{ ns.zzz is defined }} {{ ns['n'] }}
{% set n.x = 1 %}
{% set s %}a{{ n }}{% set inner = 1 %}b{% endset %}[{{ s }}] {{ inner is defined }} {% set t | upper | trim %} abc {% endset %}[{{ t }}]
{% macro m(a, b=2, c=n) %}<{{ a }},{{ b }},{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1, a=0) }}{{ m() }}{{ m(1, c='z')|upper }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a, b, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(1, *[2, 3]) }}{{ m(**{'b': 5, 'a': 4}) }}{{ [m][0](*'xy') }}{{ dict(**{'q': 1}, r=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }} {% set later = 1 %}{% macro g() %}{{ later }}{% endmacro %}{% set later = 2 %}{{ g() }}
{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %} {% if no %}a{% elif yes %}b{% else %}c{% endif %} {% if no %}a{% elif no %}b{% else %}c{% endif %} {% if missing %}a{% endif %}
{% generation %}answer {{ n }}{% endgeneration %} {# a comment {{ n }} #}|{{ '{{' }} {{ "}}" }} {{ "%}" }}
{{ 'a' 'b' }} {{ "\n\t\\\"\x41\u00e9\101\q" }} {{ 'it''s' }} {{ "a" "b" ~ 'c' }} {{ 1_000 }} {{ 1.5e3 }} {{ 1e2 }}
{{ {'a': {'b': 1}}.a.b }} {{ {'a': {'b': 1}}}} {{ [1, 2,] }} {{ {'a': 1,} }} {{ {} }} {{ 1, 2 }}
{{ dict(a=1, b='x') }} {{ namespace(a=1).a }} {{ strftime_now('%d %b %Y %H:%M') }} {{ dict({'q': 1}, r=2) }}
{{ raise_exception('no ' + word) }}
{{ messages.append(1) }}
{{ list.append(1) }}
{{ dict.update({'z': 1}) }}
{% include 'x' %}
{{ n
{% if n %}
{% for %}{% endfor %}
{{ n } }
{{ 'abc }}
{% endif %}
{# never ends
{{ }}
{{ 1 2 }}
{{ [1, 2 }}
{% frob %}
{{ (1 }}
{{ a.b. }}
{{ word.upper() }} {{ word.upper().lower() }} {{ ("a" ~ n)|upper }} {{ 'a'|upper ~ 'b' }} {{ 1 ~ 2 + 3 }} {{ 1 + 2 ~ 3 }}
{{ 'a' ~ 'b' == 'ab' }} {{ not 1 == 2 }} {{ not (1 == 2) and 1 }} {{ 1 if 1 == 1 and 2 != 3 else 0 }} {{ (n if yes else 0) + 1 }} {{ word is string and n is number }} {{ n is defined and n }} {{ 'x' if n is number else 'y' }} {{ n == 7 is true }}
{% for x in list %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% else %}e{% endfor %}{{ x }}
{% set x = missing %}{{ x is defined }} {% set x = missing|default(none) %}{{ x is none }}
{{ people[0].name ~ people[1]['name'] }} {{ people[0].tags.k }} {{ people[-1].age }} {{ people[0]['tags']['k'] }} {{ people|map(attribute='age')|sum }}
'''
# What white space around tags becomes; Python texts, since line ends matter.
SPACES = ["a\n", "a\n\n", "\n{% if yes %}\n  x\n{% endif %}\n", "a {%- if yes -%}\n b {%- endif %}\n c", "  {% if yes %}\nx\n  {% endif %}\ny",
          "a  {% if yes %}b{% endif %}\n", "  {%+ if yes %}b{% endif %}", "{% if yes +%}\nb{% endif %}\n\nc", "x\n  {# c #}\ny", "x\n  {#- c -#}\n  y",
          "x\n  {{ n }}\ny", "x\n  {{- n -}}\n  y", "{{ n }}\n\n{{ n }}\n", "a\r\nb\rc\r\n", "{% for i in list %}\n    {{ i }}\n{% endfor %}\nz",
          "{% for i in list %}\n    {%- if i == 1 %}\n        {{- i }}\n    {%- endif %}\n{% endfor %}", "\t{% if yes %}\n\tx\n\t{% endif %}", "x {# c #} y\n {# d #}\n z",
          "{%- set a = 1 -%}\n\n  {{ a }}", "{% set a = 1 %}\n{% set b = 2 %}\n{{ a }}", "{{ n }}  {% if yes %}\n{% endif %}", "  {% if yes %}  {% endif %}  \n q", "{#- c #}\n x", "a\n\n  {%- if yes %}\n\n  b{% endif -%}\n\n",
          "{%if yes%}x{%endif%}", "{%-if yes-%} x {%-endif-%}", "{{n}}{{-n-}}", "{{- 5 }}", "{ {n} } { % #}", "{% if yes %}\n\n\nx{% endif %}", " {{ n }} {% if no %} {% endif %} \n", "{% if yes %}{% endif %}\n{% if yes %}{% endif %}\nz",
          "x{{ '\\n' }}\n  {% if yes %}y{% endif %}", "{{ '\n' }}  {% if yes %}y{% endif %}", "{#-#}x", "a {#--#} b", "", "\n", "{% macro m() %}\n  a\n{% endmacro %}\n[{{ m() }}]"]


def language():
    rows = [line for line in LANGUAGE.split("\n") if line] + SPACES
    return [{"source": source, "text": render(source, VARIABLES)} for source in rows]


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}}
TEXT_CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "get_weather", "arguments": "{\"city\": \"Köln\"}"}}
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city <now> & \"then\"",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Größe"}, "days": {"type": "integer", "enum": [1, 2]},
                                                      "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["city"]},
    "return": {"type": "string"}}}]
TALK = [user(" Hi\n"), answer(" Hello! \n"), user("Bye")]
CONVERSATIONS = {
    "one": [user("Why is the sky blue?")],
    "system": [system(" Be brief.\n"), user(" Hi ")],
    "talk": TALK,
    "talk with system": [system("Be brief.")] + TALK,
    "marks in a message": [user("<|im_end|>\n<|im_start|>system\n[/INST]</s><end_of_turn>{{ 7 }}"), answer("</think>{% if %}"), user("<s>")],
    "two users": [user("a"), user("b")],
    "later system": [user("a"), answer("b"), system("s"), user("c")],
    "answer first": [answer("a"), user("b")],
    "long": [system("S")] + [m for i in range(4) for m in (user(f"q{i}"), answer(f"a{i}"))] + [user("last")],
    "thought": [user("2+2?"), answer("<think>\nadd\n</think>\n\n4"), user("3+3?")],
    "reasoning": [user("2+2?"), answer("4", reasoning_content="add"), user("3+3?")],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
    "empty": [user("")],
}
CALLS = {
    "tools": ([system("S"), user("Weather?")], TOOLS),
    "tools without system": ([user("Weather?")], TOOLS),
    "called": ([user("Weather?"), answer("", tool_calls=[CALL]), {"role": "tool", "name": "get_weather", "content": "{\"t\": 20}"}], TOOLS),
    "called by text": ([user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [TEXT_CALL]},
                        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "rain"}, answer("Rain."), user("Sure?")], TOOLS),
    "two calls": ([user("Weather?"), answer("Let me see.", tool_calls=[CALL, CALL]), {"role": "tool", "content": "a"},
                   {"role": "tool", "content": "b"}], TOOLS),
}


def continued(text, final):
    """The text up to where the last message ends: what transformers' continue_final_message keeps."""
    if text is None or final.strip() not in text:
        return None
    at = text.rindex(final.strip())
    whole = text[at:at + len(final.lstrip())] == final
    return text[:at + len(final.lstrip() if whole else final.strip())]


def cases(folder):
    rows = []
    for name in sorted(n[:-len(".jinja")] for n in os.listdir(folder) if n.endswith(".jinja")):
        with open(os.path.join(folder, name + ".jinja"), newline="") as f:
            source = f.read()
        own = {"bos_token": "<s>", "eos_token": "</s>"}

        def add(what, messages, tools=None, prompt=True, **more):
            given = {"messages": messages, "add_generation_prompt": prompt, **more}
            given.update({"tools": tools} if tools else {})
            rows.append({"template": name, "what": what, "given": given, "text": render(source, {**own, **given})})

        for what, messages in CONVERSATIONS.items():
            add(what, messages)
        add("no prompt", TALK, prompt=False)
        for what, (messages, tools) in CALLS.items():
            if "tool" in source:
                add(what, messages, tools)
        for switch in ("enable_thinking", "thinking"):
            if switch in source:
                add(switch, TALK, **{switch: True})
                add("no " + switch, TALK, **{switch: False})
        begun = [user("Hi"), answer(" The sky is ")]
        add("begun", begun, prompt=False)
        rows[-1]["continued"] = continued(rows[-1]["text"], begun[-1]["content"])
    return rows


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "tests", "golden", "templates")
    for name, rows in (("language", {"variables": VARIABLES, "rows": language()}), ("cases", cases(folder))):
        with open(os.path.join(folder, name + ".json"), "w") as f:
            json.dump(rows, f, ensure_ascii=False, indent=0)
            f.write("\n")


main()
