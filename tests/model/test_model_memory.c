/* Segment recurrence: blocks with a memory that reaches as far as attention does give what the whole sequence gives;
 * the gradient is that of the block alone, the memory held constant; sets do not know of each other; recomputation
 * gives the same bits; nothing is allocated. */
#include "model/models.h"

enum { B = 2, BLOCK = 4, BLOCKS = 4, WHOLE = BLOCK * BLOCKS };

static const struct model_case cases[] = {
    {.name = "the adaptive-span paper's",
     .place = WN_NORM_POST,
     .position = WN_POS_NONE,
     .ffn = WN_FFN_RELU,
     .norm = WN_NORM_LAYER,
     .bias = true,
     .kv_heads = 4,
     .attention = "{\"span\":{\"limit\":8,\"ramp\":4,\"init\":0.4,\"exclude_self\":true,\"loss\":0.05},\"sinks\":1,"
                  "\"relative\":true}"},
    {.name = "dynamic span, relative, grouped",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .attention = "{\"span\":{\"limit\":32,\"ramp\":4,\"dynamic\":true,\"loss\":0.05},\"relative\":true}"},
    {.name = "rope, qk-norm, grouped, window",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"window\":6}"},
    {.name = "post-norm, rope, layernorm, qk-norm, bias, exclusive",
     .place = WN_NORM_POST,
     .position = WN_POS_ROPE,
     .norm = WN_NORM_LAYER,
     .ffn = WN_FFN_GELU,
     .kv_heads = 4,
     .qk_norm = true,
     .bias = true,
     .embed_norm = true,
     .attention = "{\"exclusive\":true}"},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Block i of the whole sequences. */
static struct wn_batch block_of(const struct tokens *x, int i, int32_t *ids, int32_t *targets) {
  for (int b = 0; b < B; b++) {
    memcpy(ids + b * BLOCK, x->ids + b * WHOLE + i * BLOCK, BLOCK * sizeof *ids);
    memcpy(targets + b * BLOCK, x->targets + b * WHOLE + i * BLOCK, BLOCK * sizeof *targets);
  }
  return (struct wn_batch){.B = B, .T = BLOCK, .tokens = ids, .targets = targets};
}

static double blocks_loss(wn_context *ctx, struct wn_model *model, wn_workspace *ws, const struct tokens *x,
                          int64_t set, double *spans) {
  double loss = 0;
  *spans = 0;
  for (int i = 0; i < BLOCKS; i++) {
    int32_t ids[B * BLOCK], targets[B * BLOCK];
    const struct wn_batch batch = block_of(x, i, ids, targets);
    struct wn_step_result r;
    OK(ctx, wn_model_step(model, ws, &batch, &(struct wn_step){.loss_scale = 1, .memory_set = set}, &r));
    loss += r.loss_sum;
    *spans += r.span_loss / BLOCKS;
  }
  return loss;
}

static void test_blocks_are_the_whole(void **state) {
  (void)state;
  for (int k = 0; k < CASES; k++) {
    for (int whole_memory = 0; whole_memory < 2; whole_memory++) {
      wn_context *ctx = context_of("ref", 1);
      wn_model_config c = model_case_config(&cases[k]);
      const bool window = c.attention.window > 0;
      const int64_t memory = !whole_memory && window ? c.attention.window - 1 : WHOLE + 3;
      c.memory = memory;
      struct wn_model *model = model_of(ctx, &c, WN_F64);
      struct tokens x;
      tokens_of(&x, B, WHOLE, c.vocab_size, false);
      wn_workspace *one, *ws;
      struct wn_workspace_options options = {0};
      OK(ctx, wn_workspace_create(ctx, model, B, WHOLE, &options, &one));
      struct wn_step_result r;
      OK(ctx, wn_model_step(model, one, &x.batch, &(struct wn_step){.loss_scale = 1}, &r));
      options.memory = memory;
      options.memory_sets = 2;
      OK(ctx, wn_workspace_create(ctx, model, B, BLOCK + 1, &options, &ws)); /* larger than a block */
      double spans, first = blocks_loss(ctx, model, ws, &x, 1, &spans);
      if (!(fabs(first - r.loss_sum) < 1e-10 * r.loss_sum))
        fail_msg("%s: loss %.15g in blocks, %.15g whole", cases[k].name, first, r.loss_sum);
      assert_true(fabs(spans - r.span_loss) < 1e-12);
      assert_int_equal(wn_workspace_memory_count(ws, 1), WHOLE < memory ? WHOLE : memory);
      assert_int_equal(wn_workspace_memory_count(ws, 0), 0);
      assert_true(first == blocks_loss(ctx, model, ws, &x, 0, &spans)); /* the other set is empty */
      const double on = blocks_loss(ctx, model, ws, &x, 1, &spans);     /* goes on: another beginning */
      if (!window) assert_true(on != first);
      wn_workspace_forget(ws, 1);
      assert_true(first == blocks_loss(ctx, model, ws, &x, 1, &spans));
      wn_workspace_destroy(one);
      wn_workspace_destroy(ws);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
  }
}

/* What lies beyond the widest head's span, or a window, is not read: it may hold anything. */
static void test_out_of_sight(void **state) {
  (void)state;
  static const struct model_case narrow[] = {
      {.name = "span",
       .place = WN_NORM_POST,
       .ffn = WN_FFN_RELU,
       .kv_heads = 4,
       .attention = "{\"span\":{\"limit\":8,\"ramp\":2,\"init\":0.1,\"exclude_self\":true},\"relative\":true}"},
      {.name = "window", .position = WN_POS_ROPE, .ffn = WN_FFN_RELU, .kv_heads = 2, .attention = "{\"window\":6}"},
  };
  for (int k = 0; k < 2; k++) {
    wn_context *ctx = context_of("ref", 1);
    wn_model_config c = model_case_config(&narrow[k]);
    c.memory = 12;
    struct wn_model *model = model_of(ctx, &c, WN_F64);
    int64_t sight = 5; /* of the window; below, of the spans */
    if (k == 0) {
      double widest = 0;
      for (int l = 0; l < 2; l++) {
        const struct wn_param *row =
            &model->table.rows[wn_param_find(&model->table, l ? "layers.1.attn.span" : "layers.0.attn.span")];
        for (int h = 0; h < 4; h++)
          widest = fmax(widest, 2 + 8 * ((const double *)model->params)[row->offset + (size_t)h]);
      }
      sight = (int64_t)ceil(widest);
      assert_in_range(sight, 2, 10);
    }
    struct tokens x;
    tokens_of(&x, B, WHOLE, c.vocab_size, false);
    wn_workspace *ws;
    const struct wn_workspace_options options = {.backward = true, .memory = 12, .memory_sets = 2};
    OK(ctx, wn_workspace_create(ctx, model, B, BLOCK, &options, &ws));
    double *grads[2];
    struct wn_step_result r[2];
    for (int poisoned = 0; poisoned < 2; poisoned++) {
      grads[poisoned] = calloc(model->table.total, sizeof(double));
      for (int i = 0; i < BLOCKS; i++) {
        int32_t ids[B * BLOCK], targets[B * BLOCK];
        const struct wn_batch batch = block_of(&x, i, ids, targets);
        for (int64_t l = 0; poisoned && l < c.layers; l++) {
          int64_t shape[3];
          double *at = wn_workspace_memory_at(ws, 1, l, shape);
          for (int64_t b = 0; b < B; b++)
            for (int64_t n = 0; n < (12 - sight) * c.width; n++) at[b * shape[1] * c.width + n] = NAN;
        }
        const struct wn_step step = {.grads = grads[poisoned], .loss_scale = 1, .mem_scale = 1, .memory_set = poisoned};
        OK(ctx, wn_model_step(model, ws, &batch, &step, &r[poisoned]));
      }
    }
    assert_true(r[0].loss_sum == r[1].loss_sum);
    assert_memory_equal(grads[0], grads[1], model->table.total * sizeof(double));
    free(grads[0]);
    free(grads[1]);
    wn_workspace_destroy(ws);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

struct probe {
  wn_context *ctx;
  struct wn_model *model;
  wn_workspace *ws;
  char *kept[8];
  size_t bytes[8];
  int64_t count;
  struct wn_batch batch;
};

/* The state of memory 0, or back. */
static void snapshot(struct probe *p, bool back) {
  for (int64_t l = 0; l < p->model->config.layers; l++) {
    int64_t shape[3];
    char *at = wn_workspace_memory_at(p->ws, 0, l, shape);
    p->bytes[l] = (size_t)(shape[0] * shape[1] * shape[2]) * wn_dtype_size(p->model->dtype);
    if (!p->kept[l]) p->kept[l] = malloc(p->bytes[l]);
    memcpy(back ? at : p->kept[l], back ? p->kept[l] : at, p->bytes[l]);
  }
  if (back)
    wn_workspace_memory_set_count(p->ws, 0, p->count);
  else
    p->count = wn_workspace_memory_count(p->ws, 0);
}

static double objective(struct probe *p, void *grads) {
  struct wn_step_result r;
  const struct wn_step step = {
      .grads = grads, .loss_scale = 0.07, .mem_scale = 0.6, .training = true, .seed = 11, .step = 3};
  snapshot(p, true);
  OK(p->ctx, wn_model_step(p->model, p->ws, &p->batch, &step, &r));
  return step.loss_scale * r.loss_sum + step.mem_scale * r.span_loss;
}

/* Central differences along a random direction of each tensor, after `before` blocks. */
static void check_gradient(const struct model_case *k, int64_t memory, int before, bool recompute) {
  struct probe p = {.ctx = context_of("ref", 1)};
  wn_model_config c = model_case_config(k);
  c.memory = memory;
  c.dropout = c.dropout_hidden = c.attention.dropout = 0.1;
  p.model = model_of(p.ctx, &c, WN_F64);
  struct tokens x;
  tokens_of(&x, B, WHOLE, c.vocab_size, false);
  const struct wn_workspace_options options = {
      .backward = true, .recompute = recompute, .memory = memory, .memory_sets = 1};
  OK(p.ctx, wn_workspace_create(p.ctx, p.model, B, BLOCK, &options, &p.ws));
  int32_t ids[B * BLOCK], targets[B * BLOCK];
  for (int i = 0; i < before; i++) {
    p.batch = block_of(&x, i, ids, targets);
    struct wn_step_result r;
    OK(p.ctx, wn_model_step(p.model, p.ws, &p.batch, &(struct wn_step){.loss_scale = 1}, &r));
  }
  snapshot(&p, false);
  assert_int_equal(p.count, before * BLOCK < memory ? before * BLOCK : memory);
  p.batch = block_of(&x, before, ids, targets);
  double *grads = calloc(p.model->table.total, sizeof *grads);
  objective(&p, grads);
  for (int t = 0; t < p.model->table.count; t++) {
    const struct wn_param *row = &p.model->table.rows[t];
    double *at = (double *)p.model->params + row->offset, expected = 0, size = 0;
    double *direction = calloc(row->count, sizeof *direction), side[2];
    for (size_t i = 0; i < row->count; i++) {
      direction[i] = wn_random_normal(9, WN_STREAM_TEST, (uint64_t)t, i);
      expected += direction[i] * grads[row->offset + i];
      size += grads[row->offset + i] * grads[row->offset + i];
    }
    size = sqrt(size);
    if (!(size > 1e-8)) fail_msg("%s: the gradient of %s is nothing (%g)", k->name, row->name, size);
    for (int s = 0; s < 2; s++) {
      for (size_t i = 0; i < row->count; i++) at[i] += (s ? -4e-6 : 2e-6) * direction[i];
      side[s] = objective(&p, NULL);
    }
    for (size_t i = 0; i < row->count; i++) at[i] += 2e-6 * direction[i];
    const double found = (side[0] - side[1]) / 4e-6;
    if (!(fabs(found - expected) < 2e-6 * size + 1e-9))
      fail_msg("%s, memory %d after %d blocks: %s: %.12g by differences, %.12g by backward (norm %g)", k->name,
               (int)memory, before, row->name, found, expected, size);
    free(direction);
  }
  free(grads);
  for (int l = 0; l < 8; l++) free(p.kept[l]);
  wn_workspace_destroy(p.ws);
  wn_model_destroy(p.model);
  wn_context_destroy(p.ctx);
}

static void test_gradients(void **state) {
  (void)state;
  for (int k = 0; k < CASES; k++) {
    check_gradient(&cases[k], 6, 1, false); /* half full */
    check_gradient(&cases[k], 6, 3, k % 2 == 0);
  }
}

static void test_no_allocation(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(&cases[2]);
  c.memory = 6;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct tokens x;
  tokens_of(&x, B, WHOLE, c.vocab_size, false);
  float *grads[3];
  for (int keep = 0; keep < 3; keep++) { /* everything, recomputed, bf16 */
    wn_workspace *ws;
    const struct wn_workspace_options options = {.backward = true,
                                                 .recompute = keep == 1,
                                                 .activation_dtype = keep == 2 ? WN_BF16 : WN_F32,
                                                 .memory = 6,
                                                 .memory_sets = 1};
    OK(ctx, wn_workspace_create(ctx, model, B, BLOCK, &options, &ws));
    grads[keep] = calloc(model->table.total, sizeof(float));
    wn_memory_info before, after;
    wn_memory_info_get(&before);
    for (int i = 0; i < BLOCKS; i++) {
      int32_t ids[B * BLOCK], targets[B * BLOCK];
      const struct wn_batch batch = block_of(&x, i, ids, targets);
      struct wn_step_result r;
      const struct wn_step step = {.grads = grads[keep], .loss_scale = 1, .training = true};
      OK(ctx, wn_model_step(model, ws, &batch, &step, &r));
    }
    wn_memory_info_get(&after);
    assert_int_equal(before.total_allocations, after.total_allocations);
    wn_workspace_destroy(ws);
  }
  assert_memory_equal(grads[0], grads[1], model->table.total * sizeof(float));
  double error = 0, size = 0;
  for (size_t i = 0; i < model->table.total; i++) {
    error += pow((double)(grads[0][i] - grads[2][i]), 2);
    size += pow((double)grads[0][i], 2);
  }
  assert_true(size > 0 && sqrt(error / size) < 0.02 && error > 0);
  for (int keep = 0; keep < 3; keep++) free(grads[keep]);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(&cases[2]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_workspace *ws;
  struct wn_workspace_options options = {.memory = 4};
  assert_int_equal(wn_workspace_create(ctx, model, B, BLOCK, &options, &ws), WN_ERR_ARGUMENT); /* no set */
  options = (struct wn_workspace_options){.memory = -1, .memory_sets = 1};
  assert_int_equal(wn_workspace_create(ctx, model, B, BLOCK, &options, &ws), WN_ERR_ARGUMENT);
  options.memory = INT64_MAX / 2;
  assert_int_equal(wn_workspace_create(ctx, model, B, BLOCK, &options, &ws), WN_ERR_ARGUMENT);
  options.memory = 4;
  OK(ctx, wn_workspace_create(ctx, model, B, BLOCK, &options, &ws));
  struct tokens x;
  tokens_of(&x, B, BLOCK, c.vocab_size, true);
  struct wn_step_result r;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT); /* packed */
  x.batch.doc_start = NULL;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){.memory_set = 1}, &r), WN_ERR_ARGUMENT);
  OK(ctx, wn_model_step(model, ws, &x.batch, &(struct wn_step){.loss_scale = 1}, &r));
  wn_workspace_destroy(ws);
  wn_model_destroy(model);
  c.memory = 4;
  c.position = WN_POS_LEARNED;
  assert_int_equal(wn_model_create(ctx, &c, 1, &model), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "relative positions"));
  c.position = WN_POS_ROPE;
  c.attention.selective.enabled = true;
  assert_int_equal(wn_model_create(ctx, &c, 1, &model), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "selective"));
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_are_the_whole), cmocka_unit_test(test_out_of_sight),
                                     cmocka_unit_test(test_gradients), cmocka_unit_test(test_no_allocation),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
