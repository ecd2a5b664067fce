/* A checkpoint's config.json, and the "attention" object of a case: round trips, defaults, refusals. */
#include "support.h"

#include <math.h>

#include "attention/registry.h"
#include "base/alloc.h"
#include "model/config.h"
#include "ops/attention.h"

static wn_context *ctx;

static wn_status parse(const char *text, wn_model_config *out) {
  return wn_model_config_parse(ctx, "config.json", text, strlen(text), out);
}

static void zeros_stand_for_defaults(void **state) {
  (void)state;
  wn_model_config c;
  assert_ok(ctx, parse("{\"vocab_size\": 100, \"width\": 96, \"heads\": 6, \"kv_heads\": 2, \"ffn\": \"relu\"}", &c));
  assert_int_equal(c.head_size, 16);
  assert_int_equal(c.ffn_width, 384);
  assert_int_equal(c.context, 512);
  assert_ok(ctx, parse("{\"vocab_size\": 100, \"width\": 100, \"heads\": 1}", &c));
  assert_int_equal(c.ffn_width, 266); /* floor(800/3) */
  assert_int_equal(c.kv_heads, 1);
}

static void config_json_reads_back(void **state) {
  (void)state;
  char folder[512], path[600];
  make_folder(folder);
  snprintf(path, sizeof path, "%s/config.json", folder);
  wn_model_config c, back;
  assert_ok(ctx, parse("{\"vocab_size\": 8000, \"width\": 192, \"heads\": 3, \"layers\": 3, \"qk_norm\": true,"
                       " \"dropout\": 0.1, \"attention\": {\"selective\": {\"mem\": {\"tau\": 0.3}}}}",
                       &c));
  assert_ok(ctx, wn_model_config_save(ctx, path, &c));
  assert_ok(ctx, wn_model_config_load(ctx, path, &back));
  char *a = NULL, *b = NULL;
  assert_ok(ctx, wn_model_config_json(ctx, &c, &a));
  assert_ok(ctx, wn_model_config_json(ctx, &back, &b));
  assert_string_equal(a, b);
  assert_true(back.attention.selective.enabled && back.attention.selective.mem.tau == 0.3);
  wn_free(a);
  wn_free(b);
  remove_folder(folder);
}

static void wrong_configs_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"{}", "config.json: model: vocab_size is 0"},
      {"{\"vocab_size\": 10, \"widht\": 3}", "config.json: unknown key \"widht\"; did you mean \"width\"?"},
      {"{\"vocab_size\": 10, \"layers\": 0}", "config.json: \"layers\" is 0"},
      {"{\"vocab_size\": 10, \"width\": 7, \"heads\": 2}", "width is 7"},
      {"{\"vocab_size\": 10, \"width\": 8192, \"heads\": 1}", "\"head_size\" is 8192"},
      {"{\"vocab_size\": 10, \"norm_eps\": 0}", "\"norm_eps\" is 0"},
      {"{\"vocab_size\": 10, \"attention\": {\"selective\": {\"head\": 6}}}", "between 0 and 5"},
      {"{\"vocab_size\": 10, \"attention\": {\"off_by_one\": true, \"sinks\": 2}}", "off_by_one and sinks (2) exclude"},
      {"{\"vocab_size\": 10, \"attention\": {\"off_by_one\": true}, \"heads\": 256, \"head_size\": 4096}",
       "at most 262144"},
      {"{\"vocab_size\": 10, \"attention\": {\"off_by_one\": true}, \"encoder\": {\"layers\": 1}}",
       "attention.off_by_one exclude each other"},
      {"{\"vocab_size\": 10, \"attention\": {\"gate\": \"channel\"}}", "head"},
      {"{\"vocab_size\": 10, \"position\": \"rope\", \"memory\": 9, \"attention\": {\"write\": {\"loss\": 1}}}",
       "recurrence (memory) and attention.write.loss exclude each other"},
      {"{\"vocab_size\": 10, \"position\": \"rope\", \"memory\": 9, \"attention\": {\"write\": {\"noise\": true}}}",
       "recurrence (memory) and attention.write.noise exclude each other"},
      {"{\"vocab_size\": 10, \"position\": \"rope\", \"memory\": 9, \"attention\": {\"fade\": {\"hidden\": 4}}}",
       "recurrence (memory) and attention.fade.hidden exclude each other"},
      {"{\"vocab_size\": 10, \"attention\": {\"write\": {\"keys\": true}}}",
       "attention.write.keys needs a hidden layer (attention.write.hidden)"},
      {"{\"vocab_size\": 10, \"attention\": {\"selektive\": {}}}", "did you mean \"attention.selective\"?"},
      {"{\"vocab_size\": 10, \"attention\": {\"selective\": {\"mem\": {\"tau\": 0}}}}", "mem.tau\" is 0"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wn_model_config c;
    assert_refused(ctx, parse(rows[i].text, &c), WN_ERR_CONFIG, rows[i].part);
  }
}

static void structs_filled_by_hand_are_checked(void **state) {
  (void)state;
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 10;
  assert_ok(ctx, wn_model_config_resolve(ctx, &c));
  wn_model_config_init(&c);
  c.vocab_size = 10;
  c.layers = -1;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "\"layers\" is -1");
  wn_model_config_init(&c);
  c.vocab_size = 10;
  c.dropout = NAN;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "\"dropout\"");
  wn_model_config_init(&c);
  c.vocab_size = 10;
  c.ffn = (wn_ffn_kind)9;
  assert_refused(ctx, wn_model_config_resolve(ctx, &c), WN_ERR_CONFIG, "\"ffn\"");
}

static void attention_objects_parse(void **state) {
  (void)state;
  wn_attention_config a;
  assert_ok(ctx, wn_attention_config_parse(ctx, "{}", &a));
  assert_false(a.selective.enabled);
  assert_ok(ctx, wn_attention_config_parse(ctx, "{\"scale\": 0.25, \"selective\": {\"shift\": false}}", &a));
  assert_true(a.scale == 0.25 && a.selective.enabled && !a.selective.shift && a.selective.relu);
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"selective\": {\"heads\": 1}}", &a), WN_ERR_CONFIG,
                 "attention: unknown key \"selective.heads\"; did you mean \"selective.head\"?");
  assert_refused(ctx, wn_attention_config_parse(ctx, "{\"scale\": -1}", &a), WN_ERR_CONFIG, "\"scale\" is -1");
  assert_refused(ctx, wn_attention_config_parse(ctx, "{", &a), WN_ERR_FORMAT, "attention:1:1:");
  assert_refused(ctx, wn_attention_config_parse(ctx, NULL, &a), WN_ERR_ARGUMENT, "text is NULL");
}

static void every_mechanism_has_a_complete_row(void **state) {
  (void)state;
  assert_in_range(wn_mechanism_count(), 2, WN_MECHANISMS_MAX);
  assert_true(WN_MODEL_FIELD_GROUPS_MAX >= WN_MECHANISMS_MAX + 1);
  for (int i = 0; i < wn_mechanism_count(); i++) {
    const struct wn_mechanism *m = wn_mechanism_at(i);
    assert_true(m->name && *m->name && m->summary && m->is_enabled && m->fill);
    assert_true(m->field_count == 0 || m->fields);
    for (int k = 0; k < m->field_count; k++) {
      assert_true(m->fields[k].help && *m->fields[k].help);
      assert_true(m->fields[k].offset < sizeof(wn_attention_config));
    }
    for (int k = 0; k < i; k++) assert_string_not_equal(wn_mechanism_at(k)->name, m->name);
  }
  assert_null(wn_mechanism_at(-1));
  assert_null(wn_mechanism_at(wn_mechanism_count()));
}

static void terms_follow_the_configuration(void **state) {
  (void)state;
  wn_attention_config a;
  struct wn_attention terms = {0};
  assert_ok(ctx, wn_attention_config_parse(ctx, "{}", &a));
  wn_attention_terms(&a, -1, 64, &terms);
  assert_true(terms.scale == 0.125 && !terms.sel.on);
  assert_ok(ctx, wn_attention_config_parse(
                     ctx, "{\"scale\": 2, \"selective\": {\"head\": 3, \"relu\": false, \"mem\": {\"tau\": 4}}}", &a));
  memset(&terms, 0, sizeof terms);
  wn_attention_terms(&a, -1, 64, &terms);
  assert_true(terms.scale == 2 && terms.sel.on && terms.sel.head == 3 && !terms.sel.relu && terms.sel.protect_first &&
              terms.sel.protect_self && terms.sel.shift && !terms.sel.bilinear && terms.sel.mem &&
              terms.sel.mem_tau == 4);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zeros_stand_for_defaults),       cmocka_unit_test(config_json_reads_back),
      cmocka_unit_test(wrong_configs_are_refused),      cmocka_unit_test(structs_filled_by_hand_are_checked),
      cmocka_unit_test(attention_objects_parse),        cmocka_unit_test(every_mechanism_has_a_complete_row),
      cmocka_unit_test(terms_follow_the_configuration),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
