/* What a copy or snapshot of a session takes besides its cache: control tokens that are still to come, counts, the
 * angles of dynamic rotary scaling with which its keys were rotated, and marks in a model with an encoder. */
#include "model/models.h"

#include <math.h>

#include "decode/session.h"
#include "decode/snapshot.h"
#include "policies.h"
#include "support.h"
#include "winnow/generate.h"

enum { V = 13, READ = 20, ALL = 35, CAPACITY = 40, CELLS = 8 };

static void ids_of(int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = (i * 7 + i / 3) % V;
}

static wn_model *thresholding(wn_context *ctx, bool encoder) {
  const struct model_case k = {.position = WN_POS_ROPE,
                               .ffn = WN_FFN_SWIGLU,
                               .kv_heads = encoder ? 4 : 2,
                               .attention = "{\"threshold\":{\"tau\":0.5}}"};
  wn_model_config c = model_case_config(&k);
  c.context = 64;
  if (encoder) c.encoder.layers = 1, c.encoder.context = 8;
  return model_of(ctx, &c, WN_F32);
}

static wn_session *session_of(wn_context *ctx, wn_model *model, int64_t B, int64_t capacity, bool marks) {
  wn_session *s;
  OK(ctx, wn_session_create(ctx, model,
                            &(wn_session_options){.size = sizeof(wn_session_options),
                                                  .sequences = B,
                                                  .capacity = capacity,
                                                  .counts = true,
                                                  .control_marks = marks},
                            &s));
  return s;
}

static void same_counts(wn_context *ctx, const wn_session *a, const wn_session *b, int64_t sequence) {
  int32_t found[2][CELLS];
  int64_t context[2], content[2];
  OK(ctx, wn_session_counts(ctx, a, 0, found[0], &context[0], &content[0]));
  OK(ctx, wn_session_counts(ctx, b, sequence, found[1], &context[1], &content[1]));
  assert_memory_equal(found[0], found[1], sizeof found[0]);
  assert_true(context[0] == context[1] && content[0] == content[1]);
}

/* A session that outlives its model's handle computes on, and the last one frees the model. */
static void test_model_destroyed_first(void **state) {
  (void)state;
  wn_memory_info before, after;
  wn_memory_info_get(&before);
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = thresholding(ctx, false);
  int32_t ids[ALL];
  float expected[V], found[V];
  ids_of(ids, ALL);
  wn_session *a = session_of(ctx, model, 1, CAPACITY, false), *b = session_of(ctx, model, 1, CAPACITY, false);
  OK(ctx, wn_session_feed(ctx, a, ids, READ, 0, expected));
  wn_model_destroy(model);
  wn_model_destroy(model); /* once more does nothing */
  wn_session_destroy(a);
  OK(ctx, wn_session_feed(ctx, b, ids, READ, 0, found));
  assert_memory_equal(found, expected, sizeof found);
  wn_session_destroy(b);
  wn_context_destroy(ctx);
  wn_memory_info_get(&after);
  assert_int_equal(after.live_allocations, before.live_allocations);
}

/* Positions 0 to 2 have been read, 22 to 27 are still to come. */
static void test_marks_and_counts(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = thresholding(ctx, false);
  int32_t ids[ALL];
  float logits[2 * V], expected[V];
  ids_of(ids, ALL);
  wn_session *from = session_of(ctx, model, 1, CAPACITY, true), *plain = session_of(ctx, model, 1, CAPACITY, false);
  wn_session *two = session_of(ctx, model, 2, CAPACITY + 9, true), *back = session_of(ctx, model, 1, CAPACITY, true);
  OK(ctx, wn_session_mark_control(ctx, from, 0, 0, 3));
  OK(ctx, wn_session_mark_control(ctx, from, 0, 22, 6));
  OK(ctx, wn_session_feed(ctx, from, ids, READ, 0, NULL));
  OK(ctx, wn_session_copy(ctx, two, from, NULL));
  assert_refused(ctx, wn_session_copy(ctx, plain, from, NULL), WN_ERR_ARGUMENT, "control_marks");
  struct wn_snapshot *x;
  OK(ctx, wn_snapshot_take(ctx, from, READ, &x));
  assert_true(wn_snapshot_suits(x, back));
  OK(ctx, wn_snapshot_restore(x, READ, back));
  assert_refused(ctx, wn_session_counts(ctx, back, 0, NULL, NULL, NULL), WN_ERR_ARGUMENT, "took over");
  const uint8_t marks[] = {1, 1, 1, 0};
  assert_memory_equal(back->marks, marks, sizeof marks);
  same_counts(ctx, from, two, 1);
  OK(ctx, wn_session_feed(ctx, from, ids + READ, ALL - READ, 0, expected));
  int32_t both[2 * (ALL - READ)];
  memcpy(both, ids + READ, sizeof both / 2);
  memcpy(both + ALL - READ, ids + READ, sizeof both / 2);
  OK(ctx, wn_session_feed(ctx, two, both, ALL - READ, 0, logits));
  for (int i = 0; i < 2 * V; i++)
    if (!(fabsf(logits[i] - expected[i % V]) < 1e-4f)) fail_msg("logit %d: %g, %g", i, logits[i], expected[i % V]);
  same_counts(ctx, from, two, 0);
  assert_false(wn_snapshot_suits(x, plain));
  assert_refused(ctx, wn_session_copy(ctx, from, plain, NULL), WN_ERR_ARGUMENT, "control_marks");
  wn_session_reset(from);
  assert_refused(ctx, wn_session_counts(ctx, from, 0, NULL, NULL, NULL), WN_ERR_ARGUMENT, "nothing has been fed");
  wn_snapshot_destroy(x);
  wn_session_destroy(from), wn_session_destroy(plain), wn_session_destroy(two), wn_session_destroy(back);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

struct told {
  int count;
  int64_t context[4], content[4];
};
static bool tell(void *user, const wn_generate_piece *piece) {
  struct told *t = user;
  t->context[t->count] = piece->context, t->content[t->count++] = piece->content;
  return true;
}

static void test_marks_behind_an_encoder(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  for (int encoder = 0; encoder < 2; encoder++) {
    wn_model *model = thresholding(ctx, encoder);
    const int32_t prompt[] = {1, 2, 3, 4, 5, 6}, inputs[] = {3, 4, 5, 6};
    const uint8_t control[] = {1, 1, 1, 0, 0, 0};
    struct told told = {0};
    wn_generate_options o;
    wn_generate_options_init(&o, sizeof o);
    o.prompt = prompt, o.prompt_count = 6, o.control = control, o.counts = true, o.max_tokens = 2;
    o.piece = tell, o.user = &told;
    if (encoder) o.inputs = inputs, o.input_count = 4;
    OK(ctx, wn_generate(ctx, model, &o, NULL));
    assert_true(told.count >= 1 && told.context[0] == 6);
    if (told.content[0] != 3) fail_msg("encoder %d: %d content tokens", encoder, (int)told.content[0]);
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

/* Dynamic angles depend on the longest text that a session has held: keys rotated by one text's angles are no use to a
 * longer one. */
static void test_dynamic_scaling(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.context = 32;
  int32_t ids[READ];
  ids_of(ids, READ);
  for (int dynamic = 0; dynamic < 2; dynamic++) {
    if (dynamic) c.rope_scaling.type = WN_ROPE_DYNAMIC, c.rope_scaling.factor = 4;
    wn_model *model = model_of(ctx, &c, WN_F32);
    wn_session *from, *same, *longer;
    struct wn_snapshot *x;
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 64), &from));
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 64), &same));
    OK(ctx, wn_session_create(ctx, model, WN_OPTIONS(wn_session_options, .capacity = 640), &longer));
    OK(ctx, wn_session_feed(ctx, from, ids, READ, 0, NULL));
    OK(ctx, wn_snapshot_take(ctx, from, READ, &x));
    OK(ctx, wn_session_copy(ctx, same, from, NULL));
    assert_true(wn_snapshot_suits(x, same));
    assert_int_equal(wn_snapshot_suits(x, longer), !dynamic);
    if (dynamic)
      assert_refused(ctx, wn_session_copy(ctx, longer, from, NULL), WN_ERR_ARGUMENT, "dynamic");
    else
      OK(ctx, wn_session_copy(ctx, longer, from, NULL));
    wn_snapshot_destroy(x);
    wn_session_destroy(from), wn_session_destroy(same), wn_session_destroy(longer);
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
}

/* A copy that is refused says what differs. */
static void test_what_differs(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2};
  wn_model_config c = model_case_config(&k);
  c.context = 64;
  wn_model *model = model_of(ctx, &c, WN_F32), *another = model_of(ctx, &c, WN_F32);
  wn_budgets b[3];
  static const char *const tokens[] = {"4", "6", "4"};
  for (int i = 0; i < 3; i++) {
    budgets_init(&b[i]);
    b[i].policy = WN_POLICY_STREAMING;
    if (i == 2) OK(ctx, wn_budgets_set(ctx, "sinks=1", &b[i]));
    OK(ctx, wn_budgets_parse(ctx, &c, tokens[i], &b[i]));
  }
  const wn_session_options base = {.size = sizeof base, .sequences = 1, .capacity = CAPACITY, .budgets = &b[0]};
  wn_session_options options[] = {base, base, base, base, base, base};
  options[1].budgets = &b[1], options[2].budgets = &b[2], options[3].budgets = NULL;
  options[4].cache = WN_CACHE_HALF, options[5].tau = 0.5;
  static const char *const named[] = {NULL, "budgets, or capacities", "budgets (", "budgets (", "cache formats", "tau"};
  wn_session *from, *to;
  int32_t ids[READ];
  ids_of(ids, READ);
  OK(ctx, wn_session_create(ctx, model, &base, &from));
  OK(ctx, wn_session_feed(ctx, from, ids, READ, 0, NULL));
  for (int i = 0; i < 6; i++) {
    OK(ctx, wn_session_create(ctx, model, &options[i], &to));
    if (named[i])
      assert_refused(ctx, wn_session_copy(ctx, to, from, NULL), WN_ERR_ARGUMENT, named[i]);
    else
      OK(ctx, wn_session_copy(ctx, to, from, NULL));
    wn_session_destroy(to);
  }
  OK(ctx, wn_session_create(ctx, another, &base, &to));
  assert_refused(ctx, wn_session_copy(ctx, to, from, NULL), WN_ERR_ARGUMENT, "different models");
  wn_session_destroy(to), wn_session_destroy(from);
  for (int i = 0; i < 3; i++) wn_budgets_clear(&b[i]);
  wn_model_destroy(model), wn_model_destroy(another);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_differs), cmocka_unit_test(test_model_destroyed_first),
                                     cmocka_unit_test(test_marks_and_counts),
                                     cmocka_unit_test(test_marks_behind_an_encoder),
                                     cmocka_unit_test(test_dynamic_scaling)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
