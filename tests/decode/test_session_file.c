/* States of sessions in files: a session that is loaded continues with the same bits as the one that was saved, in
 * every configuration, under every policy and protocol; files that are damaged or of another session are refused and
 * leave the session as it was; whatever is accepted computes. And sessions that are cut back. */
#include "folder.h"
#include "model/models.h"

#include <unistd.h>

#include "decode/session.h"
#include "policies.h"
#include "winnow/safetensors.h"
#include "winnow/score.h"
#include "reach.h"

enum { V = 13, READ = 11, TAIL = 6, CONTEXT = 48, B_MOST = 2 };

static char path[600];

static void random_tokens(uint64_t seed, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (int32_t)wn_random_below(seed, WN_STREAM_TEST, 3, (uint64_t)i, V);
}

/* NULL: this model cannot have them. */
static wn_session *session_of(wn_model *model, wn_policy policy, const char *budget, const char *how, int64_t B,
                              int64_t capacity) {
  wn_budgets b;
  wn_session *s = NULL;
  budgets_init(&b);
  b.policy = policy;
  if (how) OK(ctx, wn_budgets_set(ctx, how, &b));
  wn_status status = budget ? wn_budgets_parse(ctx, wn_model_config_get(model), budget, &b) : WN_OK;
  if (status == WN_OK)
    status = wn_session_create(
        ctx, model,
        &(wn_session_options){
            .size = sizeof(wn_session_options), .sequences = B, .capacity = capacity, .budgets = budget ? &b : NULL},
        &s);
  assert_true(status == WN_OK || status == WN_ERR_CONFIG || status == WN_ERR_UNSUPPORTED);
  wn_budgets_clear(&b);
  return s;
}

static void feed(wn_session *s, const int32_t *ids, int n, float *logits) {
  int32_t both[B_MOST * READ];
  for (int64_t b = 0; b < s->B; b++)
    for (int i = 0; i < n; i++) both[b * n + i] = (ids[i] + (int32_t)b) % V;
  OK(ctx, wn_session_feed(ctx, s, both, n, 0, logits));
}

static void continue_with(wn_session *s, const int32_t *tail, float *logits) {
  for (int i = 0; i < TAIL; i++) feed(s, tail + i, 1, logits + i * B_MOST * V);
}

/* Returns whether there was something to compare. */
static bool continues(wn_model *model, const char *name, wn_policy policy, const char *budget, const char *how,
                      int64_t B) {
  wn_session *from = session_of(model, policy, budget, how, B, 30), *to;
  int32_t ids[READ], tail[TAIL];
  float expected[TAIL * B_MOST * V] = {0}, found[TAIL * B_MOST * V] = {0};
  if (!from) return false;
  random_tokens((uint64_t)policy, ids, READ);
  random_tokens((uint64_t)policy + 9, tail, TAIL);
  feed(from, ids, 5, NULL);
  feed(from, ids + 5, READ - 5, NULL);
  OK(ctx, wn_session_compress(ctx, from));
  feed(from, tail, 1, NULL);
  OK(ctx, wn_session_save(ctx, from, path));
  to = session_of(model, policy, budget, how, B, 30);
  feed(to, tail, 3, NULL); /* is forgotten */
  OK(ctx, wn_session_load(ctx, to, path));
  assert_int_equal(wn_session_position(to), READ + 1);
  assert_int_equal(wn_session_held_bytes(to), wn_session_held_bytes(from));
  continue_with(from, tail, expected);
  continue_with(to, tail, found);
  if (memcmp(expected, found, sizeof found) != 0)
    fail_msg("%s, policy %s, budget %s, %s: other logits", name, wn_policy_name(policy), budget ? budget : "none",
             how ? how : "always");
  wn_session_destroy(from), wn_session_destroy(to);
  return true;
}

static void test_continues(void **state) {
  (void)state;
  static const char *const how[] = {NULL, "when=prompt", "when=hold", "when=every,every=3", "when=prompt,share=0.5"};
  int compared = 0;
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_model_config c = model_case_config(&model_cases[k]);
    c.context = CONTEXT;
    c.recurrence = 0;
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    compared += continues(model, model_cases[k].name, 1, NULL, NULL, 1 + k % 2);
    for (wn_policy p = 0; p < wn_policy_count(); p++)
      if (wn_policy_suits(p, &c.attention))
        compared += continues(model, model_cases[k].name, p, k % 3 ? "4" : "6,40", how[(k + p) % 5], 1 + (k + p) % 2) +
                    continues(model, model_cases[k].name, p, "tau=1.2", "when=every,every=3,window=2", 1);
    wn_model_destroy(model);
  }
  assert_true(compared > 200);
}

/* --- damage --- */

static wn_model *model;
static int32_t text[READ];

static wn_session *saved(wn_policy policy, const char *budget) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.context = CONTEXT;
  model = model_of(ctx, &c, WN_F32);
  wn_session *s = session_of(model, policy, budget, NULL, 1, 30);
  random_tokens(5, text, READ);
  feed(s, text, READ, NULL);
  OK(ctx, wn_session_pin(ctx, s, 2, 1));
  OK(ctx, wn_session_save(ctx, s, path));
  return s;
}

/* A file with one wrong byte, or cut short, is refused; the session still has its own text. */
static void test_damaged(void **state) {
  (void)state;
  float expected[V], found[V];
  size_t bytes;
  wn_session *s = saved(WN_POLICY_H2O, "5"), *to = session_of(model, WN_POLICY_H2O, "5", NULL, 1, 30);
  char *data, other[620];
  OK(ctx, wn_file_load(ctx, path, 0, &data, &bytes));
  snprintf(other, sizeof other, "%s.damaged", path);
  feed(to, text, 7, NULL);
  for (size_t i = 0; i < bytes; i += i < 2000 ? 7 : 41) {
    data[i] = (char)(data[i] ^ 1 << i % 8);
    put_file(other, data, bytes);
    if (wn_session_load(ctx, to, other) == WN_OK) fail_msg("byte %zu of %zu is wrong", i, bytes);
    assert_true(*wn_context_error(ctx));
    data[i] = (char)(data[i] ^ 1 << i % 8);
    put_file(other, data, i);
    assert_int_not_equal(wn_session_load(ctx, to, other), WN_OK);
    assert_int_equal(wn_session_position(to), 7);
  }
  assert_refused(ctx, wn_session_load(ctx, to, folder), WN_ERR_IO, "");
  feed(to, text + 7, READ - 7, found);
  wn_session_destroy(s);
  s = session_of(model, WN_POLICY_H2O, "5", NULL, 1, 30);
  feed(s, text, 7, NULL), feed(s, text + 7, READ - 7, expected);
  assert_memory_equal(found, expected, sizeof found);
  wn_text_free(data);
  wn_session_destroy(s), wn_session_destroy(to);
  wn_model_destroy(model);
}

/* Files whose checksums are right, but whose description or positions are not: each is refused, or computes. */
static void test_forged(void **state) {
  (void)state;
  int refused = 0, taken = 0;
  wn_session *s = saved(WN_POLICY_H2O, "5"), *to = session_of(model, WN_POLICY_H2O, "5", NULL, 1, 30);
  wn_safetensors *file;
  OK(ctx, wn_safetensors_open(ctx, path, &file));
  wn_safetensors_entry entries[16];
  const int count = wn_safetensors_count(file);
  assert_in_range(count, 1, 16);
  char forged[620], described[8192], data[8192];
  const char *metadata[] = {"winnow.session", wn_safetensors_metadata(file, "winnow.session"), "winnow.state",
                            described, NULL};
  const char *right = wn_safetensors_metadata(file, "winnow.state");
  const size_t length = strlen(right);
  assert_true(length < sizeof described);
  snprintf(forged, sizeof forged, "%s.forged", path);
  for (uint64_t n = 0; n < 1500; n++) {
    strcpy(described, right);
    for (int i = 0; i < count; i++) entries[i] = *wn_safetensors_at(file, i);
    const int i = (int)wn_random_below(n, WN_STREAM_TEST, 5, 0, (uint64_t)count);
    const uint64_t at = wn_random_below(n, WN_STREAM_TEST, 5, 1, length);
    assert_true(entries[i].bytes <= sizeof data);
    memcpy(data, entries[i].data, entries[i].bytes);
    if (n % 3 == 0) described[at] = "0123456789-,[]{} e"[wn_random_below(n, WN_STREAM_TEST, 5, 2, 18)];
    if (n % 3 == 1) data[at % entries[i].bytes] = (char)wn_random_below(n, WN_STREAM_TEST, 5, 3, 256);
    if (n % 3 == 2) entries[i].shape[0] = (int64_t)(entries[i].bytes -= at % entries[i].bytes);
    entries[i].data = data;
    OK(ctx, wn_safetensors_write(ctx, forged, entries, count, metadata));
    wn_session_reset(to);
    if (wn_session_load(ctx, to, forged) != WN_OK) {
      assert_true(*wn_context_error(ctx) && wn_session_position(to) == 0);
      refused++;
      continue;
    }
    taken++;
    if (wn_session_position(to) + TAIL <= 30) continue_with(to, text, (float[TAIL * B_MOST * V]){0});
  }
  assert_true(refused > 300 && taken > 300); /* a key's other bits are as good as the right ones */
  metadata[2] = "else";
  for (int i = 0; i < count; i++) entries[i] = *wn_safetensors_at(file, i);
  OK(ctx, wn_safetensors_write(ctx, forged, entries, count, metadata));
  assert_refused(ctx, wn_session_load(ctx, to, forged), WN_ERR_FORMAT, "no state of a session");
  wn_safetensors_close(file);
  wn_session_destroy(s), wn_session_destroy(to);
  wn_model_destroy(model);
}

/* A file of another model or of a session with other options is refused by what differs. */
static void test_of_another(void **state) {
  (void)state;
  wn_session *s = saved(WN_POLICY_STREAMING, "5");
  wn_model *mine = model;
  static const struct {
    wn_policy policy;
    const char *budget, *how, *named;
    int64_t B, capacity;
  } others[] = {{WN_POLICY_WINDOW, "5", NULL, "\"budgets\"", 1, 30},
                {WN_POLICY_STREAMING, "6", NULL, "\"budgets\"", 1, 30},
                {WN_POLICY_STREAMING, "5", "sinks=2", "\"budgets\"", 1, 30},
                {WN_POLICY_STREAMING, NULL, NULL, "\"budgets\"", 1, 30},
                {WN_POLICY_STREAMING, "5", NULL, "\"sequences\"", 2, 30},
                {WN_POLICY_STREAMING, "5", NULL, "at most 8 tokens", 1, 8}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    wn_session *to =
        session_of(mine, others[i].policy, others[i].budget, others[i].how, others[i].B, others[i].capacity);
    assert_refused(ctx, wn_session_load(ctx, to, path), i < 5 ? WN_ERR_CONFIG : WN_ERR_FORMAT, others[i].named);
    wn_session_destroy(to);
  }
  wn_model_config c = *wn_model_config_get(mine);
  for (int i = 0; i < 2; i++) {
    if (i) c.norm_eps *= 2;
    wn_model *other = model_of(ctx, &c, WN_F32);
    float one = 1;
    if (!i) memcpy(reach(other->params), &one, sizeof one);
    wn_session *to = session_of(other, WN_POLICY_STREAMING, "5", NULL, 1, 30);
    assert_refused(ctx, wn_session_load(ctx, to, path), WN_ERR_CONFIG, i ? "\"configuration\"" : "\"weights\"");
    wn_session_destroy(to);
    wn_model_destroy(other);
  }
  wn_session *empty = session_of(mine, 1, NULL, NULL, 1, 30),
             *method = session_of(mine, 1, "5", "when=prompt,method=observed,per_kv_head=true", 1, 30);
  assert_refused(ctx, wn_session_save(ctx, empty, path), WN_ERR_ARGUMENT, "nothing has been fed");
  assert_non_null(method);
  feed(method, text, READ, NULL);
  assert_refused(ctx, wn_session_save(ctx, method, path), WN_ERR_UNSUPPORTED, "a method collects");
  wn_session_destroy(empty), wn_session_destroy(method), wn_session_destroy(s);
  wn_model_destroy(mine);
}

/* --- cutting --- */

static void test_cut(void **state) {
  (void)state;
  wn_session *s = saved(WN_POLICY_STREAMING, "20"), *alone;
  float expected[TAIL * B_MOST * V] = {0}, found[TAIL * B_MOST * V] = {0};
  int32_t tail[TAIL], next = 3;
  double score;
  random_tokens(77, tail, TAIL);
  for (int at = READ - 1; at >= 0; at -= 5) {
    OK(ctx, wn_session_cut(ctx, s, at));
    assert_int_equal(wn_session_position(s), at);
    assert_refused(ctx, wn_session_save(ctx, s, path), WN_ERR_ARGUMENT, at ? "it was cut" : "nothing has been fed");
    assert_refused(
        ctx,
        wn_session_score_next(ctx, s, &next, 1, &(wn_scores){.size = sizeof(wn_scores), .log_probability = &score}),
        WN_ERR_ARGUMENT, "no token");
    continue_with(s, tail, found);
    alone = session_of(model, WN_POLICY_STREAMING, "20", NULL, 1, 30);
    if (at) feed(alone, text, at, NULL);
    continue_with(alone, tail, expected);
    assert_memory_equal(found, expected, sizeof found);
    wn_session_destroy(alone);
    OK(ctx, wn_session_cut(ctx, s, at));
  }
  assert_refused(ctx, wn_session_cut(ctx, s, READ), WN_ERR_ARGUMENT, "has not seen more");
  wn_session_destroy(s);
  s = session_of(model, WN_POLICY_STREAMING, "6", NULL, 1, 30);
  feed(s, text, READ, NULL);
  assert_refused(ctx, wn_session_cut(ctx, s, 3), WN_ERR_UNSUPPORTED, "layer 0");
  assert_int_equal(wn_session_position(s), READ);
  wn_session_destroy(s);
  wn_model_destroy(model);
}

static int set_up_path(void **state) {
  set_up(state);
  snprintf(path, sizeof path, "%s/state", folder);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_continues),  cmocka_unit_test(test_damaged), cmocka_unit_test(test_forged),
      cmocka_unit_test(test_of_another), cmocka_unit_test(test_cut),
  };
  return cmocka_run_group_tests(tests, set_up_path, tear_down);
}
