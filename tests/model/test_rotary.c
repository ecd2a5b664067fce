/* Rotary tables for a context longer than the model's own table: logits do not depend on where the table is, and a long
 * context alone costs no memory. */
#include "support.h"

#include <math.h>
#include "model/model.h"
#include "reach.h"

static wn_model *make(wn_context *ctx, int64_t context, wn_rope_pairs pairs) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = 11, c.context = context, c.layers = 1, c.width = 8, c.heads = 2, c.kv_heads = 1;
  c.position = WN_POS_ROPE;
  c.rope_pairs = pairs;
  c.init_std = 0.3;
  assert_ok(ctx, wn_model_create(ctx, &c, 1, &model));
  return model;
}

/* With the same weights, another context changes nothing. A session longer than the table has a table of its own. */
static void long_context(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_model *small = make(ctx, 64, WN_ROPE_HALVES), *large = make(ctx, 1 << 24, WN_ROPE_HALVES);
  int32_t tokens[40];
  float a[11], b[11];
  for (int i = 0; i < 40; i++) tokens[i] = i * 7 % 11;
  assert_true(large->rotary.rows <= 1 << 16);
  wn_session *s;
  assert_ok(ctx, wn_session_create(ctx, small, NULL, &s));
  assert_ok(ctx, wn_session_feed(ctx, s, tokens, 40, 0, a));
  wn_session_destroy(s);
  assert_ok(ctx,
            wn_session_create(ctx, large, WN_OPTIONS(wn_session_options, .capacity = large->rotary.rows + 100), &s));
  assert_ok(ctx, wn_session_feed(ctx, s, tokens, 40, 0, b));
  wn_session_destroy(s);
  assert_memory_equal(a, b, sizeof a);
  wn_model_destroy(small);
  wn_model_destroy(large);
  wn_context_destroy(ctx);
}

/* Permuting the rows of q and k turns one kind of RoPE pairs into the other. */
static void pairs(void **state) {
  (void)state;
  wn_context *ctx = make_context();
  wn_model *halves = make(ctx, 64, WN_ROPE_HALVES), *adjacent = make(ctx, 64, WN_ROPE_ADJACENT);
  const int at = wn_param_find(&halves->table, "layers.0.attn.qkv.weight");
  const struct wn_param *row = &halves->table.rows[at];
  const float *from = (const float *)reach(halves->params) + row->offset;
  float *to = (float *)reach(adjacent->params) + row->offset;
  for (int r = 0; r < 12; r++) { /* two heads of q and one of k, 4 dimensions each */
    const int d = r % 4, other = r / 4 * 4 + d % 2 * 2 + d / 2;
    memcpy(to + r * 8, from + other * 8, 8 * sizeof *to);
  }
  int32_t tokens[30];
  float a[30 * 11], b[30 * 11];
  for (int i = 0; i < 30; i++) tokens[i] = i * 5 % 11;
  assert_ok(ctx, wn_model_logits(ctx, halves, tokens, 1, 30, NULL, a));
  assert_ok(ctx, wn_model_logits(ctx, adjacent, tokens, 1, 30, NULL, b));
  double worst = 0, spread = 0;
  for (int i = 0; i < 30 * 11; i++) {
    worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    spread = fmax(spread, fabs((double)a[i]));
  }
  assert_true(spread > 0.1);
  assert_true(worst < 1e-5);
  to[0] += 1; /* the comparison does see a change */
  assert_ok(ctx, wn_model_logits(ctx, adjacent, tokens, 1, 30, NULL, b));
  assert_true(memcmp(a, b, sizeof a) != 0);
  wn_model_destroy(halves);
  wn_model_destroy(adjacent);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(long_context), cmocka_unit_test(pairs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
