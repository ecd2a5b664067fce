/* Configuration by tables of fields: every type, every refusal, the suggestion of the nearest key, switches, writing
 * and help. */
#include "support.h"

#include <math.h>

#include "base/alloc.h"
#include "base/fields.h"

struct thing {
  bool flag;
  int small;
  int64_t large;
  uint64_t seed;
  double rate;
  int color;
  char name[8];
  struct {
    bool enabled;
    double gain;
    struct {
      bool enabled;
      int depth;
    } inner;
  } part;
};
static const char *const colors[] = {"red", "", "green", "blue", NULL};
static const struct wn_field fields[] = {
    {"flag", WN_FIELD_BOOL, offsetof(struct thing, flag), 0, 0, NULL, "a flag"},
    {"small", WN_FIELD_INT, offsetof(struct thing, small), -3, 10, NULL, "a small one"},
    {"large", WN_FIELD_INT64, offsetof(struct thing, large), 0, 1e15, NULL, "a large one"},
    {"seed", WN_FIELD_UINT64, offsetof(struct thing, seed), 0, 18446744073709551615.0, NULL, "a seed"},
    {"rate", WN_FIELD_DOUBLE, offsetof(struct thing, rate), 0, 2, NULL, "a rate"},
    {"color", WN_FIELD_ENUM, offsetof(struct thing, color), 0, 0, colors, "a color"},
    {"name", WN_FIELD_STRING, offsetof(struct thing, name), 0, 8, NULL, "a name"},
    {"part.enabled", WN_FIELD_BOOL, offsetof(struct thing, part.enabled), 0, 0, NULL, "a part"},
    {"part.gain", WN_FIELD_DOUBLE, offsetof(struct thing, part.gain), 0, 1, NULL, "its gain"},
    {"part.inner.enabled", WN_FIELD_BOOL, offsetof(struct thing, part.inner.enabled), 0, 0, NULL, "inside"},
    {"part.inner.depth", WN_FIELD_INT, offsetof(struct thing, part.inner.depth), 0, 9, NULL, "its depth"},
};
#define FIELDS ((int)(sizeof fields / sizeof *fields))
static const struct thing defaults = {.small = 1, .large = 2, .seed = 3, .rate = 0.5, .name = "x", .part.gain = 0.25};
static const struct wn_field_group group = {"", fields, FIELDS, 0, false};
static wn_context *ctx;

static wn_status load(const char *text, struct thing *out) {
  json_t *j = NULL;
  assert_ok(ctx, wn_json_load_text(ctx, WN_JSON_CONFIG, "test", text, strlen(text), &j));
  *out = defaults;
  wn_status status = wn_fields_read(ctx, "t.json", j, &group, 1, out);
  json_decref(j);
  return status;
}

static void every_type_is_read(void **state) {
  (void)state;
  struct thing t;
  assert_ok(ctx, load("{\"flag\": true, \"small\": -3, \"large\": 1e15, \"seed\": \"18446744073709551615\","
                      "\"rate\": 2, \"color\": \"blue\", \"name\": \"seven77\"}",
                      &t));
  assert_true(t.flag);
  assert_int_equal(t.small, -3);
  assert_true(t.large == 1000000000000000);
  assert_true(t.seed == UINT64_MAX);
  assert_true(t.rate == 2);
  assert_int_equal(t.color, 3);
  assert_string_equal(t.name, "seven77");
  assert_false(t.part.enabled);
  assert_true(t.part.gain == 0.25);
}

static void wrong_values_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"{\"flag\": 1}", "t.json: \"flag\" must be true or false, not a number"},
      {"{\"small\": 11}", "t.json: \"small\" is 11; it must be between -3 and 10"},
      {"{\"small\": -4}", "\"small\" is -4"},
      {"{\"small\": 1.5}", "\"small\" must be a whole number"},
      {"{\"small\": \"1\"}", "\"small\" must be a whole number, not a string"},
      {"{\"small\": 4294967297}", "\"small\" is 4294967297"},
      {"{\"large\": 1000000000000001}", "\"large\" is 1000000000000001"},
      {"{\"large\": 1e300}", "\"large\" must be a whole number"},
      {"{\"large\": -9223372036854775808}", "\"large\" is -9223372036854775808"},
      {"{\"seed\": -1}", "\"seed\" must be a whole number of at least 0"},
      {"{\"seed\": \"18446744073709551616\"}", "\"seed\" is 18446744073709551616"},
      {"{\"seed\": \"12x\"}", "\"seed\" must be"},
      {"{\"seed\": \"\"}", "\"seed\" must be"},
      {"{\"rate\": 2.0001}", "\"rate\" is 2.0001; it must be between 0 and 2"},
      {"{\"rate\": -1e-9}", "\"rate\" is -1e-09"},
      {"{\"rate\": null}", "\"rate\" must be a number, not null"},
      {"{\"rate\": [1]}", "\"rate\" must be a number, not a list"},
      {"{\"color\": \"gren\"}", "\"color\" is \"gren\"; it must be red, green or blue; did you mean \"green\"?"},
      {"{\"color\": \"\"}", "it must be red"},
      {"{\"color\": 1}", "\"color\" must be a string"},
      {"{\"name\": \"eight888\"}", "\"name\" is 8 bytes long; at most 7 fit"},
      {"{\"part\": 3}", "\"part\" must be an object, true or false, not a number"},
      {"{\"part\": {\"gain\": 7}}", "\"part.gain\" is 7"},
      {"[]", "expected a JSON object, found a list"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct thing t;
    assert_refused(ctx, load(rows[i].text, &t), WN_ERR_CONFIG, rows[i].part);
  }
}

static void unknown_keys_get_the_nearest(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"{\"smal\": 1}", "t.json: unknown key \"smal\"; did you mean \"small\"?"},
      {"{\"part\": {\"gian\": 1}}", "unknown key \"part.gian\"; did you mean \"part.gain\"?"},
      {"{\"gain\": 1}", "unknown key \"gain\"; did you mean \"part.gain\"?"},
      {"{\"parts\": {}}", "did you mean \"part\"?"},
      {"{\"part\": {\"depth\": 1}}", "did you mean \"part.inner.depth\"?"},
      {"{\"part.gain\": 1}", "unknown key \"part.gain\""},
      {"{\"\": 1}", "unknown key \"\""},
  };
  struct thing t;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_refused(ctx, load(rows[i].text, &t), WN_ERR_CONFIG, rows[i].part);
  assert_refused(ctx, load("{\"nothing_like_any\": 1}", &t), WN_ERR_CONFIG, "unknown key \"nothing_like_any\"");
  assert_null(strstr(wn_context_error(ctx), "did you mean"));
  char text[2200]; /* a key longer than any buffer */
  memset(text, 'k', sizeof text);
  memcpy(text, "{\"", 2);
  memcpy(text + sizeof text - 6, "\": 1}", 6);
  assert_refused(ctx, load(text, &t), WN_ERR_CONFIG, "unknown key \"kkkk");
}

static void an_object_switches_its_part_on(void **state) {
  (void)state;
  struct thing t;
  assert_ok(ctx, load("{\"part\": {}}", &t));
  assert_true(t.part.enabled && !t.part.inner.enabled);
  assert_ok(ctx, load("{\"part\": true}", &t));
  assert_true(t.part.enabled);
  assert_ok(ctx, load("{\"part\": false}", &t));
  assert_false(t.part.enabled);
  assert_ok(ctx, load("{\"part\": {\"gain\": 1, \"inner\": {\"depth\": 4}, \"enabled\": false}}", &t));
  assert_true(!t.part.enabled && t.part.inner.enabled && t.part.inner.depth == 4 && t.part.gain == 1);
}

static void writing_reads_back(void **state) {
  (void)state;
  struct thing t = {.flag = true, .small = -2, .large = 5, .seed = UINT64_MAX - 1, .rate = 0.1, .color = 2}, back;
  strcpy(t.name, "a\"b");
  t.part.gain = 1.0 / 3;
  t.part.inner.enabled = true;
  json_t *j = NULL;
  assert_ok(ctx, wn_fields_write(ctx, &group, 1, &t, &j));
  back = defaults;
  assert_ok(ctx, wn_fields_read(ctx, "t.json", j, &group, 1, &back));
  json_decref(j);
  assert_true(back.flag && back.small == -2 && back.large == 5 && back.seed == UINT64_MAX - 1 && back.rate == 0.1 &&
              back.color == 2 && back.part.gain == t.part.gain && !back.part.enabled && back.part.inner.enabled);
  assert_string_equal(back.name, t.name);
  t.color = 1; /* a number that has no name */
  assert_refused(ctx, wn_fields_write(ctx, &group, 1, &t, &j), WN_ERR_CONFIG, "\"color\"");
  t.color = 99;
  assert_refused(ctx, wn_fields_write(ctx, &group, 1, &t, &j), WN_ERR_CONFIG, "\"color\"");
  t.color = 0;
  t.rate = NAN;
  assert_refused(ctx, wn_fields_write(ctx, &group, 1, &t, &j), WN_ERR_CONFIG, "\"rate\"");
  t.rate = 0;
  memset(t.name, 'x', sizeof t.name);
  assert_refused(ctx, wn_fields_write(ctx, &group, 1, &t, &j), WN_ERR_CONFIG, "\"name\"");
}

static void help_has_a_line_for_every_row(void **state) {
  (void)state;
  char *text = NULL;
  const struct wn_field_group prefixed = {"top", fields, FIELDS, 0, false};
  assert_ok(ctx, wn_fields_help(ctx, &prefixed, 1, &defaults, &text));
  int lines = 0;
  for (char *c = text; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, FIELDS);
  assert_non_null(strstr(text, "  top.small "));
  assert_non_null(strstr(text, "range -3..10"));
  assert_non_null(strstr(text, "range 0..2^64-1"));
  assert_non_null(strstr(text, "red|green|blue"));
  assert_non_null(strstr(text, "default \"x\""));
  wn_free(text);
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

struct later {
  bool on;
  double number;
};
static const struct wn_field later_fields[] = {
    {"later.enabled", WN_FIELD_BOOL, offsetof(struct later, on), 0, 0, NULL, "a group that came later"},
    {"later.number", WN_FIELD_DOUBLE, offsetof(struct later, number), 0, 9, NULL, "its number"},
    {"later.was", WN_FIELD_FORMER, 0, 0.5, 0, NULL, "set the number"},
};

static int warnings;
static void count_warning(void *user, wn_log_level level, const char *line) {
  (void)user;
  warnings += level == WN_LOG_WARNING && strstr(line, "later.was") && strstr(line, "set the number");
}

/* A group that is off is not written. A former key is read, with a warning unless it has no effect, and never written.
 */
static void optional_groups_and_former_keys(void **state) {
  (void)state;
  const struct wn_field_group later = {"", later_fields, 3, 0, true};
  wn_context *logs = NULL;
  const wn_context_options options = {.size = sizeof options, .backend = "ref", .threads = 1, .log = count_warning};
  assert_int_equal(wn_context_create(&options, &logs), WN_OK);
  static const char *const texts[] = {"{}", "{\"later\":{\"was\":0.5}}", "{\"later\":{\"number\":2,\"was\":3}}"};
  for (int n = 0; n < 3; n++) {
    struct later x = {false, 1};
    json_t *object = json_loads(texts[n], 0, NULL), *written = NULL;
    assert_int_equal(wn_fields_read(logs, "test", object, &later, 1, &x), WN_OK);
    assert_int_equal(warnings, n == 2);
    assert_int_equal(wn_fields_write(logs, &later, 1, &x, &written), WN_OK);
    const json_t *section = json_object_get(written, "later");
    assert_int_equal(section != NULL, n > 0);
    assert_null(json_object_get(section, "was"));
    if (n == 2) assert_true(json_number_value(json_object_get(section, "number")) == 2);
    json_decref(object);
    json_decref(written);
  }
  char *help = NULL;
  const struct later defaults = {false, 1};
  assert_int_equal(wn_fields_help(logs, &later, 1, &defaults, &help), WN_OK);
  assert_non_null(strstr(help, "later.number"));
  assert_null(strstr(help, "later.was"));
  wn_free(help);
  wn_context_destroy(logs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(optional_groups_and_former_keys), cmocka_unit_test(every_type_is_read),
      cmocka_unit_test(wrong_values_are_refused),        cmocka_unit_test(unknown_keys_get_the_nearest),
      cmocka_unit_test(an_object_switches_its_part_on),  cmocka_unit_test(writing_reads_back),
      cmocka_unit_test(help_has_a_line_for_every_row),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
