/* Segment recurrence. Blocks whose recurrence reaches as far as attention does give the result of the whole sequence.
 * The gradient is that of the block alone, with the recurrence held constant. Sets are independent. Recomputation gives
 * the same bits. Nothing is allocated. With learned spans a layer's room follows its widest head, and tokens that it
 * does not hold make no difference. */
#include "model/models.h"
#include "reach.h"

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
    {.name = "norms on both sides, geglu, local angles, capped logits, scaled embedding",
     .place = WN_NORM_BOTH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GEGLU,
     .kv_heads = 2,
     .embed_scale = 2,
     .logit_softcap = 3,
     .rope_local_theta = 30,
     .attention = "{\"window\":6}"},
    {.name = "selective, rope, qk-norm",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 4,
     .qk_norm = true,
     .sel = {PAPER}},
    {.name = "selective for each key-value head, bilinear, relative, span, sinks",
     .position = WN_POS_NONE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .bias = true,
     .attention = "{\"selective\":{\"per_kv_head\":true,\"bilinear\":true},\"relative\":true,\"sinks\":1,"
                  "\"span\":{\"limit\":32,\"ramp\":4,\"init\":0.4,\"loss\":0.05}}"},
    {.name = "norms on the branches alone, qk-norm over all heads, scaled branches, divided logits",
     .place = WN_NORM_BRANCH,
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_SWIGLU,
     .kv_heads = 2,
     .qk_norm = true,
     .qk_norm_whole = true,
     .residual_scale = 0.7,
     .logit_divisor = 1.3},
    {.name = "selective in a window, L_mem, no relu, no shift",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_GELU,
     .kv_heads = 2,
     .attention = "{\"selective\":{\"mem\":{\"eps\":0.2},\"relu\":false,\"shift\":false},\"window\":6}"},
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
    OK(ctx, wn_model_step(model, ws, &batch, &(struct wn_step){.loss_scale = 1, .recurrence_set = set}, &r));
    loss += r.loss_sum;
    *spans += r.span_loss / BLOCKS;
  }
  return loss;
}

static void test_blocks_are_the_whole(void **state) {
  (void)state;
  for (int k = 0; k < CASES; k++) {
    for (int whole_recurrence = 0; whole_recurrence < 2; whole_recurrence++) {
      wn_context *ctx = context_of("ref", 1);
      wn_model_config c = model_case_config(&cases[k]);
      const bool window = c.attention.window > 0;
      const int64_t memory = !whole_recurrence && window ? c.attention.window - 1 : WHOLE + 3;
      c.recurrence = memory;
      struct wn_model *model = model_of(ctx, &c, WN_F64);
      struct tokens x;
      tokens_of(&x, B, WHOLE, c.vocab_size, false);
      for (int b = 0; b < B; b++) x.targets[(b + 1) * WHOLE - 1] = 1; /* a stream has no padding */
      wn_workspace *one, *ws;
      struct wn_workspace_options options = {0};
      OK(ctx, wn_workspace_create(ctx, model, B, WHOLE, &options, &one));
      struct wn_step_result r;
      OK(ctx, wn_model_step(model, one, &x.batch, &(struct wn_step){.loss_scale = 1}, &r));
      options.recurrence = memory;
      options.recurrence_sets = 2;
      OK(ctx, wn_workspace_create(ctx, model, B, BLOCK + 1, &options, &ws)); /* room for more than a block */
      double spans, first = blocks_loss(ctx, model, ws, &x, 1, &spans);
      if (!(fabs(first - r.loss_sum) < 1e-10 * r.loss_sum))
        fail_msg("%s: loss %.15g in blocks, %.15g whole", cases[k].name, first, r.loss_sum);
      assert_true(fabs(spans - r.span_loss) < 1e-12);
      assert_int_equal(wn_workspace_recurrence_count(ws, 1, 0), WHOLE < memory ? WHOLE : memory);
      assert_int_equal(wn_workspace_recurrence_count(ws, 0, 0), 0);
      assert_true(first == blocks_loss(ctx, model, ws, &x, 0, &spans)); /* the other set is empty */
      const double on = blocks_loss(ctx, model, ws, &x, 1, &spans);     /* continues: a different start */
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

/* ---- learned spans ---- */

enum { LONG_BLOCK = 32, LONG_BLOCKS = 48, LONG_MEMORY = 256 };
struct stream {
  wn_context *ctx;
  struct wn_model *model;
  int32_t ids[LONG_BLOCK * LONG_BLOCKS + 1];
};

static const struct model_case spanned[] = {
    {.name = "span",
     .place = WN_NORM_POST,
     .ffn = WN_FFN_RELU,
     .kv_heads = 4,
     .attention = "{\"span\":{\"limit\":250,\"ramp\":4,\"exclude_self\":true,\"loss\":1e-3},\"relative\":true}"},
    {.name = "span, selective",
     .position = WN_POS_ROPE,
     .ffn = WN_FFN_RELU,
     .kv_heads = 2,
     .qk_norm = true,
     .attention = "{\"span\":{\"limit\":250,\"ramp\":4},\"selective\":{\"bilinear\":true}}"},
};

static void stream_init(struct stream *s, const struct model_case *k, const char *backend, wn_dtype dtype) {
  s->ctx = context_of(backend, 1);
  wn_model_config c = model_case_config(k);
  c.context = LONG_BLOCK;
  c.recurrence = LONG_MEMORY;
  s->model = model_of(s->ctx, &c, dtype);
  for (size_t i = 0; i < sizeof s->ids / sizeof *s->ids; i++)
    s->ids[i] = (int32_t)wn_random_below(5, WN_STREAM_TEST, 1, i, (uint64_t)c.vocab_size);
}

static void stream_clear(struct stream *s) {
  wn_model_destroy(s->model);
  wn_context_destroy(s->ctx);
}

/* Sets every head's span to at most `tokens` tokens in layer 0 and half of that in layer 1; head 2's exactly to that.
 */
static void set_spans(struct stream *s, double tokens) {
  for (int l = 0; l < 2; l++) {
    const struct wn_param *row =
        &s->model->table.rows[wn_param_find(&s->model->table, l ? "layers.1.attn.span" : "layers.0.attn.span")];
    for (size_t h = 0; h < 4; h++) {
      const double z = tokens / (250.0 * (1 + l) * (h == 2 ? 1 : 3));
      if (s->model->dtype == WN_F64)
        ((double *)reach(s->model->params))[row->offset + h] = z;
      else
        ((float *)reach(s->model->params))[row->offset + h] = (float)z;
    }
  }
}

static struct wn_step_result stream_step(struct stream *s, wn_workspace *ws, int64_t i, void *grads) {
  struct wn_step_result r;
  const int32_t *at = s->ids + i * LONG_BLOCK;
  const struct wn_batch batch = {.B = 1, .T = LONG_BLOCK, .tokens = at, .targets = at + 1};
  OK(s->ctx, wn_model_step(s->model, ws, &batch,
                           &(struct wn_step){.grads = grads, .loss_scale = 1, .mem_scale = 1, .span_scale = 1}, &r));
  return r;
}

static int64_t room_of(const wn_workspace *ws, int64_t l) {
  int64_t shape[3];
  wn_workspace_recurrence_at(ws, 0, l, shape);
  return shape[1] - LONG_BLOCK;
}

/* What lies beyond the widest head's span is not read, so it may hold anything. The result is that of the full length.
 */
static void test_out_of_sight(void **state) {
  (void)state;
  for (int k = 0; k < 2; k++) {
    struct stream s;
    stream_init(&s, &spanned[k], "ref", WN_F64);
    set_spans(&s, 90); /* with the ramp 94 and 49: rooms of 128 and 64, each plus a spare block */
    double *grads[3], loss[3];
    for (int kind = 0; kind < 3; kind++) { /* trimmed; NaN where no span reaches; full length */
      wn_workspace *ws;
      const struct wn_workspace_options options = {.backward = true,
                                                   .recurrence = LONG_MEMORY,
                                                   .recurrence_sets = 1,
                                                   .recurrence_whole = kind == 2,
                                                   .recompute = kind == 1};
      OK(s.ctx, wn_workspace_create(s.ctx, s.model, 1, LONG_BLOCK, &options, &ws));
      for (int l = 0; l < 2; l++) assert_int_equal(room_of(ws, l), kind == 2 ? LONG_MEMORY : l ? 128 : 192);
      grads[kind] = calloc(s.model->table.total, sizeof(double));
      for (int i = 0; i < 10; i++) {
        for (int64_t l = 0; kind == 1 && l < 2; l++) {
          int64_t shape[3];
          double *at = reach(wn_workspace_recurrence_at(ws, 0, l, shape));
          for (int64_t n = 0; n < (room_of(ws, l) - (l ? 49 : 94)) * shape[2]; n++) at[n] = NAN;
        }
        loss[kind] = stream_step(&s, ws, i, grads[kind]).loss_sum;
      }
      for (int l = 0; l < 2; l++) assert_int_equal(wn_workspace_recurrence_count(ws, 0, l), room_of(ws, l));
      assert_int_equal(wn_workspace_recurrence_seen(ws, 0), 10 * LONG_BLOCK);
      wn_workspace_destroy(ws);
    }
    assert_true(loss[0] == loss[1]);
    assert_memory_equal(grads[0], grads[1], s.model->table.total * sizeof(double));
    assert_true(fabs(loss[0] - loss[2]) < 1e-11 * loss[2]);
    double error = 0, size = 0;
    for (size_t i = 0; i < s.model->table.total; i++)
      error += pow(grads[0][i] - grads[2][i], 2), size += pow(grads[2][i], 2);
    assert_true(size > 0 && sqrt(error) < 1e-10 * sqrt(size));
    for (int kind = 0; kind < 3; kind++) free(grads[kind]);
    stream_clear(&s);
  }
}

/* A window is not learned, so its room has no spare block. */
static void test_window_room(void **state) {
  (void)state;
  struct stream s;
  const struct model_case window = {.position = WN_POS_ROPE,
                                    .ffn = WN_FFN_RELU,
                                    .kv_heads = 4,
                                    .attention = "{\"window\":65,\"window_layers\":\"10\"}"};
  stream_init(&s, &window, "ref", WN_F32);
  wn_workspace *ws;
  const struct wn_workspace_options options = {.recurrence = LONG_MEMORY, .recurrence_sets = 1};
  OK(s.ctx, wn_workspace_create(s.ctx, s.model, 1, LONG_BLOCK, &options, &ws));
  assert_int_equal(room_of(ws, 0), 64);
  assert_int_equal(room_of(ws, 1), LONG_MEMORY);
  wn_workspace_destroy(ws);
  stream_clear(&s);
}

/* Spans shrink and grow between steps. Rooms follow, and memory is really freed. Once the streams have moved on by as
 * far as the model can look back, all is as with the full length. Between those steps, and within a block's margin,
 * nothing is moved. */
static void test_rooms_follow(void **state) {
  (void)state;
  static const struct {
    double tokens;
    int64_t rooms[2];
    bool moves;
  } turns[] = {
      {90, {192, 128}, false},  {120, {192, 128}, false}, {240, {256, 192}, true},
      {190, {256, 192}, false}, {100, {256, 192}, false}, /* a change within one block moves nothing */
      {59, {128, 192}, true},
  };
  for (int keep = 0; keep < 2; keep++) { /* everything kept; recomputed */
    struct stream s;
    stream_init(&s, &spanned[1], "cpu", WN_F32);
    set_spans(&s, turns[0].tokens);
    struct wn_workspace_options options = {
        .backward = true, .recompute = keep == 1, .recurrence = LONG_MEMORY, .recurrence_sets = 1};
    wn_workspace *ws, *whole;
    OK(s.ctx, wn_workspace_create(s.ctx, s.model, 1, LONG_BLOCK, &options, &ws));
    options.recurrence_whole = true;
    OK(s.ctx, wn_workspace_create(s.ctx, s.model, 1, LONG_BLOCK, &options, &whole));
    assert_true(wn_workspace_recurrence_bytes(ws) < wn_workspace_recurrence_bytes(whole));
    float *grads = calloc(s.model->table.total, sizeof *grads);
    int64_t block = 0;
    for (size_t turn = 0; turn < sizeof turns / sizeof *turns; turn++) {
      wn_memory_info before, fitted, after;
      const size_t held = wn_workspace_bytes(ws);
      const uint64_t moves = wn_workspace_recurrence_moves(ws);
      set_spans(&s, turns[turn].tokens);
      wn_memory_info_get(&before);
      OK(s.ctx, wn_workspace_fit(ws));
      wn_memory_info_get(&fitted);
      for (int l = 0; l < 2; l++) assert_int_equal(room_of(ws, l), turns[turn].rooms[l]);
      assert_int_equal(moves != wn_workspace_recurrence_moves(ws), turns[turn].moves);
      assert_int_equal(fitted.live_bytes - before.live_bytes, wn_workspace_bytes(ws) - held);
      OK(s.ctx, wn_workspace_fit(whole));
      double trimmed = 0, all = 0;
      for (int i = 0; i < 8; i++, block++) {
        trimmed = stream_step(&s, ws, block, grads).loss_sum;
        all = stream_step(&s, whole, block, grads).loss_sum;
        OK(s.ctx, wn_workspace_fit(ws));
      }
      wn_memory_info_get(&after);
      assert_int_equal(fitted.total_allocations, after.total_allocations); /* steps and such fits allocate nothing */
      /* If spans grow by more than the spare block in one step, tokens are missing until the streams have moved on.
       */
      if (turn != 2 && !(fabs(trimmed - all) < 1e-5 * all)) fail_msg("turn %zu: %.9g, whole %.9g", turn, trimmed, all);
    }
    free(grads);
    wn_workspace_destroy(ws);
    wn_workspace_destroy(whole);
    stream_clear(&s);
  }
}

struct probe {
  wn_context *ctx;
  struct wn_model *model;
  wn_workspace *ws;
  char *kept[8], *selections[8];
  int64_t seen;
  int32_t counts[8];
  struct wn_batch batch;
};

static void keep_array(char **kept, char *at, const int64_t shape[3], wn_dtype dtype, bool back) {
  const size_t bytes = (size_t)(shape[0] * shape[1] * shape[2]) * wn_dtype_size(dtype);
  if (!at) return;
  if (!*kept) *kept = malloc(bytes);
  memcpy(back ? at : *kept, back ? *kept : at, bytes);
}

/* Saves the state of set 0, or restores it (back). */
static void snapshot(struct probe *p, bool back) {
  int64_t shape[3];
  for (int64_t l = 0; l < p->model->config.layers; l++) {
    char *at = reach(wn_workspace_recurrence_at(p->ws, 0, l, shape));
    keep_array(&p->kept[l], at, shape, p->model->dtype, back);
    at = reach(wn_workspace_recurrence_selections_at(p->ws, 0, l, shape));
    keep_array(&p->selections[l], at, shape, p->model->dtype, back);
    if (!back) p->counts[l] = (int32_t)wn_workspace_recurrence_count(p->ws, 0, l);
  }
  if (back)
    wn_workspace_recurrence_restore(p->ws, 0, p->seen, p->counts);
  else
    p->seen = wn_workspace_recurrence_seen(p->ws, 0);
}

static double objective(struct probe *p, void *grads) {
  struct wn_step_result r;
  struct wn_step step = model_case_step();
  step.grads = grads;
  snapshot(p, true);
  OK(p->ctx, wn_model_step(p->model, p->ws, &p->batch, &step, &r));
  return model_case_objective(&step, &r);
}

/* Central differences along a random direction of each tensor, after `before` blocks. */
static void check_gradient(const struct model_case *k, int64_t memory, int before, bool recompute) {
  struct probe p = {.ctx = context_of("ref", 1)};
  wn_model_config c = model_case_config(k);
  c.recurrence = memory;
  c.dropout = c.dropout_hidden = c.attention.dropout = 0.1;
  p.model = model_of(p.ctx, &c, WN_F64);
  struct tokens x;
  tokens_of(&x, B, WHOLE, c.vocab_size, false);
  const struct wn_workspace_options options = {
      .backward = true, .recompute = recompute, .recurrence = memory, .recurrence_sets = 1};
  OK(p.ctx, wn_workspace_create(p.ctx, p.model, B, BLOCK, &options, &p.ws));
  int32_t ids[B * BLOCK], targets[B * BLOCK];
  for (int i = 0; i < before; i++) {
    p.batch = block_of(&x, i, ids, targets);
    struct wn_step_result r;
    OK(p.ctx, wn_model_step(p.model, p.ws, &p.batch, &(struct wn_step){.loss_scale = 1}, &r));
  }
  snapshot(&p, false);
  assert_int_equal(p.counts[1], before * BLOCK < memory ? before * BLOCK : memory);
  p.batch = block_of(&x, before, ids, targets);
  double *grads = calloc(p.model->table.total, sizeof *grads);
  objective(&p, grads);
  for (int t = 0; t < p.model->table.count; t++) {
    const struct wn_param *row = &p.model->table.rows[t];
    double *at = (double *)reach(p.model->params) + row->offset, expected = 0, size = 0;
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
  for (int l = 0; l < 8; l++) free(p.kept[l]), free(p.selections[l]);
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

/* With recurrence, the cpu backend gives the reference's loss and gradients, both in single precision. */
static void test_backends(void **state) {
  (void)state;
  for (int k = 0; k < CASES; k++) {
    double loss[2];
    float *grads[2];
    size_t total = 0;
    for (int fast = 0; fast < 2; fast++) {
      wn_context *ctx = context_of(fast ? "cpu" : "ref", 1);
      wn_model_config c = model_case_config(&cases[k]);
      c.recurrence = 6;
      struct wn_model *model = model_of(ctx, &c, WN_F32);
      struct tokens x;
      tokens_of(&x, B, WHOLE, c.vocab_size, false);
      const struct wn_workspace_options options = {.backward = true, .recurrence = 6, .recurrence_sets = 1};
      wn_workspace *ws;
      OK(ctx, wn_workspace_create(ctx, model, B, BLOCK, &options, &ws));
      total = model->table.total;
      grads[fast] = calloc(total, sizeof(float));
      loss[fast] = 0;
      for (int i = 0; i < BLOCKS; i++) {
        int32_t ids[B * BLOCK], targets[B * BLOCK];
        const struct wn_batch batch = block_of(&x, i, ids, targets);
        struct wn_step_result r;
        const struct wn_step step = {.grads = grads[fast], .loss_scale = 1, .mem_scale = 1, .span_scale = 1};
        OK(ctx, wn_model_step(model, ws, &batch, &step, &r));
        loss[fast] += r.loss_sum + r.span_loss + r.mem_loss;
      }
      wn_workspace_destroy(ws);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
    double error = 0, size = 0;
    for (size_t i = 0; i < total; i++) {
      error += pow((double)(grads[0][i] - grads[1][i]), 2);
      size += pow((double)grads[0][i], 2);
    }
    if (!(size > 0 && sqrt(error / size) < 1e-4 && fabs(loss[0] - loss[1]) < 1e-5 * loss[0]))
      fail_msg("%s: loss %.9g, fast %.9g; gradients differ by %g", cases[k].name, loss[0], loss[1], sqrt(error / size));
    free(grads[0]);
    free(grads[1]);
  }
}

static void check_no_allocation(const struct model_case *k) {
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(k);
  c.recurrence = 6;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct tokens x;
  tokens_of(&x, B, WHOLE, c.vocab_size, false);
  float *grads[3];
  for (int keep = 0; keep < 3; keep++) { /* kept, recomputed, bf16 */
    wn_workspace *ws;
    const struct wn_workspace_options options = {.backward = true,
                                                 .recompute = keep == 1,
                                                 .activation_dtype = keep == 2 ? WN_BF16 : WN_F32,
                                                 .recurrence = 6,
                                                 .recurrence_sets = 1};
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

static void test_no_allocation(void **state) {
  (void)state;
  check_no_allocation(&cases[2]);
  check_no_allocation(&cases[4]);
  check_no_allocation(&cases[5]);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(&cases[2]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  wn_workspace *ws;
  struct wn_workspace_options options = {.recurrence = 4};
  assert_int_equal(wn_workspace_create(ctx, model, B, BLOCK, &options, &ws), WN_ERR_ARGUMENT); /* no set */
  options = (struct wn_workspace_options){.recurrence = -1, .recurrence_sets = 1};
  assert_int_equal(wn_workspace_create(ctx, model, B, BLOCK, &options, &ws), WN_ERR_ARGUMENT);
  options.recurrence = INT64_MAX / 2;
  assert_int_equal(wn_workspace_create(ctx, model, B, BLOCK, &options, &ws), WN_ERR_ARGUMENT);
  options.recurrence = 4;
  OK(ctx, wn_workspace_create(ctx, model, B, BLOCK, &options, &ws));
  struct tokens x;
  tokens_of(&x, B, BLOCK, c.vocab_size, true);
  struct wn_step_result r;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT); /* packed */
  x.batch.doc_start = NULL;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){.recurrence_set = 1}, &r), WN_ERR_ARGUMENT);
  OK(ctx, wn_model_step(model, ws, &x.batch, &(struct wn_step){.loss_scale = 1}, &r));
  wn_workspace_destroy(ws);
  wn_model_destroy(model);
  c.recurrence = 4;
  c.position = WN_POS_LEARNED;
  assert_int_equal(wn_model_create(ctx, &c, 1, &model), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "relative positions"));
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks_are_the_whole),
                                     cmocka_unit_test(test_out_of_sight),
                                     cmocka_unit_test(test_window_room),
                                     cmocka_unit_test(test_rooms_follow),
                                     cmocka_unit_test(test_gradients),
                                     cmocka_unit_test(test_backends),
                                     cmocka_unit_test(test_no_allocation),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
