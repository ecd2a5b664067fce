/* Chat templates run as they are: the same text as jinja2 set up by transformers (tools/make-template-goldens.py), the
 * origin of each byte, and templates that would take too long, too much memory or too deep a stack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support.h"
#include "text/template/template.h"

#define NOON INT64_C(1767355200) /* 2026-01-02 12:00 UTC */
static wn_context *ctx;

static int setup(void **state) {
  (void)state;
  setenv("TZ", "UTC", 1);
  return wn_context_create(NULL, &ctx) != WN_OK;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

static char *read_text(const char *name) {
  char path[600];
  snprintf(path, sizeof path, WN_TEST_DIR "/golden/templates/%s", name);
  FILE *f = fopen(path, "rb");
  char *text = calloc(1, 1 << 20);
  assert_non_null(f);
  assert_true(text && fread(text, 1, (1 << 20) - 1, f) > 0);
  fclose(f);
  return text;
}
static json_t *read_json(const char *name) {
  char *text = read_text(name);
  json_error_t error;
  json_t *j = json_loads(text, 0, &error);
  free(text);
  if (!j) fail_msg("%s: %s, line %d", name, error.text, error.line);
  return j;
}

/* Counts a row as failed, with what is wrong, if the template does not give this text; NULL: it must be refused. */
static int differs(const char *source, const struct wn_template_input *input, const char *want, const char *what) {
  struct wn_template_text text;
  const wn_status status = wn_template_render(ctx, source, input, &text);
  const bool same =
      status != WN_OK ? !want : want && strlen(want) == text.bytes && !memcmp(text.data, want, text.bytes);
  if (!same)
    print_error("%s:\n%s\nexpected:\n%s\n", what, status == WN_OK ? text.data : wn_context_error(ctx),
                want ? want : "(refused)");
  if (status != WN_OK) assert_true(strstr(wn_context_error(ctx), ", line ") && !strchr(wn_context_error(ctx), '\n'));
  if (status == WN_OK) assert_true(strlen(text.data) == text.bytes);
  wn_template_text_clear(&text);
  return !same;
}

static void test_language(void **state) {
  (void)state;
  json_t *all = read_json("language.json"), *row;
  const struct wn_template_input input = {.given = json_object_get(all, "variables"), .now = NOON};
  size_t i;
  int failed = 0;
  json_array_foreach(json_object_get(all, "rows"), i, row) {
    const char *source = json_string_value(json_object_get(row, "source"));
    failed += differs(source, &input, json_string_value(json_object_get(row, "text")), source);
  }
  assert_true(i > 100);
  json_decref(all);
  assert_int_equal(failed, 0);
}

static void test_templates(void **state) {
  (void)state;
  json_t *all = read_json("cases.json"), *row;
  json_t *own = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
  size_t i;
  int failed = 0;
  json_array_foreach(all, i, row) {
    char what[200], name[100];
    const char *template = json_string_value(json_object_get(row, "template"));
    const struct wn_template_input input = {.own = own, .given = json_object_get(row, "given"), .now = NOON};
    snprintf(name, sizeof name, "%s.jinja", template);
    snprintf(what, sizeof what, "%s, %s", template, json_string_value(json_object_get(row, "what")));
    char *source = read_text(name);
    failed += differs(source, &input, json_string_value(json_object_get(row, "text")), what);
    free(source);
  }
  assert_true(i > 300);
  json_decref(all);
  json_decref(own);
  assert_int_equal(failed, 0);
}

/* The origin of each byte goes with it; 'T' of the template, 'g' given, 'm' marked. */
static void test_origins(void **state) {
  (void)state;
  static const struct {
    const char *source, *text, *from;
  } rows[] = {
      {"<{{ m.content }}>", "<ab-ab>", "TgggggT"},
      {"{{ m.content|upper }}{{ m.content[1:3] }}{{ 'x' ~ m.content[0] ~ 'y' }}", "AB-ABb-xay", "gggggggTgT"},
      {"{{ m.content.replace('-', '+') }}{{ m.content.split('-')|join(', ') }}", "ab+abab, ab", "ggTggggTTgg"},
      {"{{ m|tojson }}", "{\"role\": \"user\", \"content\": \"ab-ab\"}", "TTggggTTTTTTTTTTTTgggggggTTTTgggggTT"},
      {"{% set ns = namespace(t='') %}{% set ns.t = ns.t + m.content %}{{ ns.t * 2 }}", "ab-abab-ab", "gggggggggg"},
      {"{% macro w(x) %}<{{ x }}>{% endmacro %}{{ w(m.content)|trim }}", "<ab-ab>", "TgggggT"},
      {"{% set x %}({{ m.content }}){% endset %}{{ x[::-1] }}", ")ba-ba(", "TgggggT"},
      {"{{ '<|' + m.role + '|>' }}{{ other }}", "<|user|>cd", "TTTTTTTTmm"},
      {"{{ bos }}{{ [m.content, other]|join }}{{ other|trim|title }}", "<s>ab-abcdCd", "TTTgggggmmmm"},
  };
  json_t *given = json_pack("{s:{s:s,s:s},s:s}", "m", "role", "user", "content", "ab-ab", "other", "cd");
  json_t *own = json_pack("{s:s}", "bos", "<s>");
  const struct wn_template_input input = {.own = own, .given = given, .marked = {json_object_get(given, "other")}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct wn_template_text text;
    char from[100] = {0};
    if (wn_template_render(ctx, rows[i].source, &input, &text) != WN_OK) fail_msg("%s", wn_context_error(ctx));
    for (size_t k = 0; k < text.bytes; k++) from[k] = "Tgm"[text.from[k]];
    assert_string_equal(text.data, rows[i].text);
    if (strcmp(from, rows[i].from)) fail_msg("%s: %s, expected %s", rows[i].source, from, rows[i].from);
    wn_template_text_clear(&text);
  }
  json_decref(given);
  json_decref(own);
}

static char *repeated(const char *before, const char *one, int times, const char *after) {
  char *out = calloc(1, strlen(before) + strlen(one) * (size_t)times + strlen(after) + 1), *at;
  assert_non_null(out);
  at = stpcpy(out, before);
  for (int i = 0; i < times; i++) at = stpcpy(at, one);
  strcpy(at, after);
  return out;
}

/* Hostile templates: each is refused by a bound, soon. */
static void test_bounds(void **state) {
  (void)state;
  static const struct {
    const char *before, *one;
    int times;
    const char *after, *says;
  } rows[] = {
      {"{% set l = range(9000)|list %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}", "", 0, "", "steps"},
      {"{% for a in range(900000000) %}{% endfor %}", "", 0, "", "memory"},
      {"{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "", 0, "",
       "memory"},
      {"{{ 'x' * 9000000000 }}", "", 0, "", "steps"},
      {"{{ [1] * 9000000000 }}", "", 0, "", "memory"},
      {"{{ ([1] * 100000) * 100000000000000 }}", "", 0, "", "memory"},
      {"{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "", 0, "", "within each other"},
      {"{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", "", 0,
       "", "within each other"},
      {"{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
       "", 0, "", "within each other"},
      {"{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "", 0, "", "within each other"},
      {"{{ ", "(", 100000, "", "no end"},
      {"{{ ", "-", 100000, "1 }}", "within each other"},
      {"{{ 1", "+1", 100000, " }}", "within each other"},
      {"{{ ", "[1] + ", 100000, "1 }}", "within each other"},
      {"{{ a", "[0", 30000, "", "no end"},
      {"{{ a", ".a", 100000, " }}", "within each other"},
      {"{{ 1", "|abs", 100000, " }}", "within each other"},
      {"{{ 1", " if 1 else 1", 100000, " }}", "within each other"},
      {"", "{% if 1 %}", 100000, "", "within each other"},
      {"", "{% for a in [1] %}", 100000, "", "within each other"},
      {"{% set t = 'ab' * 499999 %}{% for a in range(9999) %}{{ t.find('c') }}{% endfor %}", "", 0, "", "steps"},
      {"{% set t = 'a' * 999999 %}{{ t.rfind('a' * 99999 + 'b') }}", "", 0, "", "steps"},
      {"{% set t = 'ab' * 9999 %}{% for a in t %}{{ t|replace('a', t) }}{% endfor %}", "", 0, "", "memory"},
  };
  const struct wn_template_input input = {0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct wn_template_text text;
    char *source = repeated(rows[i].before, rows[i].one, rows[i].times, rows[i].after);
    const wn_status status = wn_template_render(ctx, source, &input, &text);
    if (status != WN_ERR_FORMAT || !strstr(wn_context_error(ctx), rows[i].says))
      fail_msg("row %zu: status %d, %s", i, (int)status, wn_context_error(ctx));
    wn_template_text_clear(&text);
    free(source);
  }
  /* A macro outlives the block that it was made in. */
  assert_int_equal(differs("{% set ns = namespace() %}{% set b %}{% set x = 5 %}{% macro m() %}<{{ x }}>{% endmacro %}"
                           "{% set ns.m = m %}{% endset %}{{ ns.m() }}{{ ns.m() }}{{ 'a'|attr(5) }}",
                           &input, "<5><5>", "a macro of a block"),
                   0);
  char *source = repeated("{% if 0 %}", "{% elif 0 %}", 20000, "{% else %}x{% endif %}"); /* a chain is no nesting */
  assert_int_equal(differs(source, &input, "x", "a chain of elif"), 0);
  free(source);
}

/* What is refused, and which line and name the error has. */
static void test_errors(void **state) {
  (void)state;
  static const struct {
    const char *source, *says;
    wn_status status;
  } rows[] = {
      {"a\n{% include 'x' %}", "line 2: the statement \"include\" is not known", WN_ERR_UNSUPPORTED},
      {"a\n\n{{ x|nosuch }}", "line 3: the filter \"nosuch\" is not known", WN_ERR_UNSUPPORTED},
      {"{{ x is nosuch }}", "line 1: the test \"nosuch\" is not known", WN_ERR_UNSUPPORTED},
      {"\n{{ nosuch(1) }}", "line 2: the function \"nosuch\" is not known", WN_ERR_UNSUPPORTED},
      {"{{ 'a'.nosuch() }}", "line 1: the method \"nosuch\" is not known", WN_ERR_UNSUPPORTED},
      {"{{ 'a'.strip(z=1) }}", "strip: the argument \"z\" is not known", WN_ERR_UNSUPPORTED},
      {"{# #}\n{{ raise_exception('Roles must\nalternate') }}", "line 2: the template refuses this conversation: Roles",
       WN_ERR_ARGUMENT},
      {"{% if x %}\n\n", "line 2: expected one of elif else endif, found the end", WN_ERR_FORMAT},
      {"{% for i in x recursive %}{% endfor %}", "line 1: a recursive loop is not known", WN_ERR_UNSUPPORTED},
      {"{{ '%s' % 1 }}", "line 1: unsupported operands of %: 'str' and 'int'", WN_ERR_FORMAT},
      {"{{ 10000000000 * 10000000000 }}", "line 1: a number is beyond 64 bits", WN_ERR_FORMAT},
      {"{{ x.y.z }}", "line 1: 'x' is undefined", WN_ERR_FORMAT},
      {"{{ 'a }}", "line 1: a text has no end", WN_ERR_FORMAT},
      {"{% break %}", "line 1: expected a loop", WN_ERR_FORMAT},
  };
  const struct wn_template_input input = {0};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct wn_template_text text;
    const wn_status status = wn_template_render(ctx, rows[i].source, &input, &text);
    if (status != rows[i].status || !strstr(wn_context_error(ctx), rows[i].says))
      fail_msg("%s: status %d, %s", rows[i].source, (int)status, wn_context_error(ctx));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_language), cmocka_unit_test(test_templates),
                                     cmocka_unit_test(test_origins), cmocka_unit_test(test_bounds),
                                     cmocka_unit_test(test_errors)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
