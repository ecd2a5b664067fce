/* wn_model_step: recomputation gives the same bits and bf16 storage similar values; gradients add up; a smaller batch
 * fits a larger workspace; threads and backends agree; nothing is allocated; bad arguments are refused. */
#include "model/models.h"
#include "reach.h"

struct outcome {
  struct wn_step_result r;
  float *grads;
  size_t total;
};

static struct outcome run_step(wn_context *ctx, struct wn_model *model, struct tokens *x, int64_t B, int64_t T,
                               bool recompute, wn_dtype activations) {
  wn_workspace *ws;
  const struct wn_workspace_options options = {
      .backward = true, .recompute = recompute, .activation_dtype = activations};
  OK(ctx, wn_workspace_create(ctx, model, B, T, &options, &ws));
  struct outcome o = {.total = model->table.total};
  o.grads = calloc(o.total, sizeof *o.grads);
  assert_non_null(o.grads);
  const struct wn_step step = {
      .grads = o.grads, .loss_scale = 0.05, .mem_scale = 1, .span_scale = 1, .training = true, .seed = 1, .step = 9};
  OK(ctx, wn_model_step(model, ws, &x->batch, &step, &o.r));
  wn_workspace_destroy(ws);
  return o;
}

/* Gradients of projections need not start as zeros. The first of two micro-steps overwrites them, in every kind of
 * model, also if no token counts. */
static void test_gradients_not_begun(void **state) {
  (void)state;
  int fresh = 0;
  for (int k = 0; k < MODEL_CASES; k++) {
    for (int precision = 0; precision < 2; precision++) {
      const wn_model_config c = model_case_config(&model_cases[k]);
      struct tokens x;
      tokens_of(&x, 2, 13, c.vocab_size, model_cases[k].packed);
      wn_context *ctx = context_of("cpu", 1);
      struct wn_model *model = model_of(ctx, &c, WN_F32);
      wn_workspace *ws;
      const struct wn_workspace_options options = {.backward = true, .precision = precision ? WN_BF16 : WN_F32};
      OK(ctx, wn_workspace_create(ctx, model, 2, 13, &options, &ws));
      const size_t total = model->table.total;
      float *zeros = calloc(total, sizeof *zeros), *left = calloc(total, sizeof *left);
      uint8_t *begun = calloc((size_t)model->table.count, 1);
      assert_true(zeros && left && begun);
      for (int i = 0; i < model->table.count; i++) {
        begun[i] = !wn_model_begins(model, i);
        fresh += !begun[i];
        for (size_t n = 0; n < model->table.rows[i].count && !begun[i]; n++)
          left[model->table.rows[i].offset + n] = NAN;
      }
      struct wn_step step = {.loss_scale = 0.05, .mem_scale = 1, .span_scale = 1, .training = true, .seed = 1};
      for (int micro = 0; micro < 2; micro++) {
        struct wn_step_result r;
        step.step = (uint64_t)micro;
        step.grads = zeros, step.begun = NULL;
        OK(ctx, wn_model_step(model, ws, &x.batch, &step, &r));
        step.grads = left, step.begun = begun;
        OK(ctx, wn_model_step(model, ws, &x.batch, &step, &r));
        for (int i = 0; i < model->table.count; i++) assert_true(begun[i]);
        for (size_t n = 0; n < total; n++)
          if (!(zeros[n] == left[n])) fail_msg("%s: %g and %g", model_cases[k].name, (double)zeros[n], (double)left[n]);
      }
      /* no token counts: zeros */
      int32_t *targets = malloc(2 * 13 * sizeof *targets);
      assert_non_null(targets);
      struct wn_batch none = x.batch;
      for (int n = 0; n < 2 * 13; n++) targets[n] = -1;
      none.targets = targets;
      if (wn_model_begins(model, model->outer.output)) {
        const struct wn_param *output = &model->table.rows[model->outer.output];
        struct wn_step_result r;
        begun[model->outer.output] = 0;
        for (size_t n = 0; n < output->count; n++) left[output->offset + n] = NAN;
        OK(ctx, wn_model_step(model, ws, &none, &step, &r));
        for (size_t n = 0; n < output->count; n++) assert_true(left[output->offset + n] == 0);
      }
      free(zeros), free(left), free(begun), free(targets);
      wn_workspace_destroy(ws);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
  }
  assert_true(fresh > 100);
}

static double norm_of(const float *g, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += (double)g[i] * (double)g[i];
  return sqrt(sum);
}

static void check_close(const char *name, const struct outcome *a, const struct outcome *b, double tolerance) {
  assert_int_equal(a->total, b->total);
  double sum = 0;
  for (size_t i = 0; i < a->total; i++) sum += pow((double)a->grads[i] - (double)b->grads[i], 2);
  const double size = norm_of(a->grads, a->total);
  assert_true(size > 1e-3);
  if (!(sqrt(sum) <= tolerance * size)) fail_msg("%s: gradients differ by %g of %g", name, sqrt(sum), size);
  if (!(fabs(a->r.loss_sum - b->r.loss_sum) <= tolerance * fabs(a->r.loss_sum)))
    fail_msg("%s: losses %.9g and %.9g", name, a->r.loss_sum, b->r.loss_sum);
  if (!(fabs(a->r.mem_loss - b->r.mem_loss) <= tolerance)) fail_msg("%s: L_mem differs", name);
  assert_int_equal(a->r.counted, b->r.counted);
}

static void test_same_result(void **state) {
  (void)state;
  static const char *const backends[] = {"ref", "cpu"};
  for (int k = 0; k < MODEL_CASES; k++) {
    const wn_model_config c = model_case_config(&model_cases[k]);
    struct tokens x;
    tokens_of(&x, 2, 13, c.vocab_size, model_cases[k].packed);
    struct outcome first = {0};
    for (int i = 0; i < 2; i++) {
      wn_context *ctx = context_of(backends[i], k % 12 == 6 ? 2 : 1); /* threads are slow on a busy machine */
      struct wn_model *model = model_of(ctx, &c, WN_F32);
      struct outcome whole = run_step(ctx, model, &x, 2, 13, false, WN_F32);
      struct outcome again = run_step(ctx, model, &x, 2, 13, true, WN_F32);
      assert_memory_equal(whole.grads, again.grads, whole.total * sizeof(float));
      assert_true(whole.r.loss_sum == again.r.loss_sum && whole.r.mem_loss == again.r.mem_loss);
      free(again.grads);
      again = run_step(ctx, model, &x, 3, 16, false, WN_F32); /* a larger workspace */
      check_close(model_cases[k].name, &whole, &again, 1e-6);
      free(again.grads);
      again = run_step(ctx, model, &x, 3, 16, false, WN_BF16); /* same forward pass; backward from rounded values */
      assert_true(whole.r.loss_sum == again.r.loss_sum && whole.r.mem_loss == again.r.mem_loss);
      assert_memory_not_equal(whole.grads, again.grads, whole.total * sizeof(float));
      check_close(model_cases[k].name, &whole, &again, 1.0 / 128);
      free(again.grads);
      if (i == 0)
        first = whole;
      else
        check_close(model_cases[k].name, &first, &whole, 2e-5), free(whole.grads);
      wn_model_destroy(model);
      wn_context_destroy(ctx);
    }
    free(first.grads);
  }
}

/* Two micro-batches add up to one batch, also with L_mem, whose share follows mem_scale. */
static void test_micro_batches(void **state) {
  (void)state;
  wn_context *ctx = context_of("ref", 1);
  const wn_model_config c = model_case_config(&model_cases[6]);
  struct wn_model *model = model_of(ctx, &c, WN_F64);
  struct tokens x;
  tokens_of(&x, 2, 13, c.vocab_size, false);
  wn_workspace *ws;
  const struct wn_workspace_options options = {.backward = true, .activation_dtype = WN_F32};
  OK(ctx, wn_workspace_create(ctx, model, 2, 13, &options, &ws));
  const size_t total = model->table.total;
  double *one = calloc(total, sizeof *one), *two = calloc(total, sizeof *two);
  assert_true(one && two);
  struct wn_step step = {.grads = one, .loss_scale = 0.05, .mem_scale = 1, .span_scale = 1};
  struct wn_step_result r, part;
  OK(ctx, wn_model_step(model, ws, &x.batch, &step, &r));
  step.grads = two;
  step.mem_scale = 0.5;
  double mem = 0, loss = 0;
  for (int b = 0; b < 2; b++) {
    const struct wn_batch half = {.B = 1, .T = 13, .tokens = x.ids + 13 * b, .targets = x.targets + 13 * b};
    OK(ctx, wn_model_step(model, ws, &half, &step, &part));
    mem += 0.5 * part.mem_loss;
    loss += part.loss_sum;
  }
  assert_true(fabs(loss - r.loss_sum) < 1e-12 * loss);
  assert_true(r.mem_loss > 0 && fabs(mem - r.mem_loss) < 1e-12);
  for (size_t i = 0; i < total; i++) assert_true(fabs(one[i] - two[i]) < 1e-12);
  free(one);
  free(two);
  wn_workspace_destroy(ws);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Documents of these lengths, one for each sequence of T tokens, or packed into one sequence. */
static struct wn_step_result run_documents(struct wn_model *model, const int *lengths, int count, int64_t T,
                                           bool packed, double *grads) {
  enum { TOKENS = 128 };
  const int64_t B = packed ? 1 : count;
  int32_t ids[TOKENS] = {0}, targets[TOKENS], doc_start[TOKENS] = {0};
  assert_true(B * T <= TOKENS);
  for (int i = 0; i < TOKENS; i++) targets[i] = -1;
  for (int64_t d = 0, at = 0; d < count; d++) {
    const int64_t row = packed ? 0 : d, first = packed ? at : 0;
    for (int64_t t = 0; t < lengths[d]; t++) {
      const int64_t i = row * T + first + t;
      ids[i] = (int32_t)wn_random_below(7, WN_STREAM_TEST, (uint64_t)d, (uint64_t)t, 11);
      targets[i] = (int32_t)wn_random_below(7, WN_STREAM_TEST, (uint64_t)d, (uint64_t)t + 1, 11);
      doc_start[i] = (int32_t)first;
    }
    at += lengths[d];
    for (int64_t t = at; packed && d == count - 1 && t < T; t++) doc_start[t] = (int32_t)at; /* padding: its own */
  }
  wn_workspace *ws;
  const struct wn_workspace_options options = {.backward = true, .activation_dtype = WN_F32};
  OK(model->ctx, wn_workspace_create(model->ctx, model, B, T, &options, &ws));
  memset(grads, 0, model->table.total * sizeof *grads);
  const struct wn_step step = {.grads = grads, .loss_scale = 0.05, .mem_scale = 1, .span_scale = 1};
  const struct wn_batch batch = {
      .B = B, .T = T, .tokens = ids, .targets = targets, .doc_start = packed ? doc_start : NULL};
  struct wn_step_result r;
  assert_int_equal(wn_batch_documents(&batch), count);
  OK(model->ctx, wn_model_step(model, ws, &batch, &step, &r));
  wn_workspace_destroy(ws);
  return r;
}

/* L_mem belongs to a document: neither padding nor the documents it is packed with change it or any gradient. */
static void test_memory_loss_of_documents(void **state) {
  (void)state;
  static const int lengths[] = {5, 9, 2};
  wn_context *ctx = context_of("ref", 1);
  wn_model_config c = model_case_config(&model_cases[6]);
  c.context = 40;
  struct wn_model *model = model_of(ctx, &c, WN_F64);
  const size_t total = model->table.total;
  double *want = calloc(total, sizeof *want), *got = calloc(total, sizeof *got);
  assert_true(want && got);
  assert_true(c.attention.selective.mem.enabled);
  const struct {
    int count;
    int64_t T;
    bool packed;
  } same[] = {{1, 5, false}, {1, 16, false}, {1, 40, false}, {1, 16, true},
              {3, 9, false}, {3, 16, true},  {3, 30, true},  {3, 33, false}};
  struct wn_step_result first = {0};
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    const bool begins = i == 0 || same[i].count != same[i - 1].count;
    const struct wn_step_result r =
        run_documents(model, lengths, same[i].count, same[i].T, same[i].packed, begins ? want : got);
    if (begins) first = r;
    if (!(fabs(r.mem_loss - first.mem_loss) < 1e-12) || !(r.mem_loss > 0.05))
      fail_msg("%d documents in rows of %d: L_mem %.9f, before %.9f", same[i].count, (int)same[i].T, r.mem_loss,
               first.mem_loss);
    for (size_t n = 0; n < total && !begins; n++)
      if (!(fabs(want[n] - got[n]) < 1e-12)) fail_msg("rows of %d: gradient %zu differs", (int)same[i].T, n);
  }
  free(want);
  free(got);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* wn_model_logits and the step agree: wn_model_step's loss, computed from the logits by hand. */
static void test_logits(void **state) {
  (void)state;
  for (int k = 0; k < MODEL_CASES; k++) {
    wn_context *ctx = context_of("cpu", 1);
    const wn_model_config c = model_case_config(&model_cases[k]);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    struct tokens x;
    tokens_of(&x, 2, 11, c.vocab_size, model_cases[k].packed);
    float logits[22 * 13];
    assert_int_equal(c.vocab_size, 13);
    OK(ctx, wn_model_logits(ctx, model, x.ids, 2, 11, WN_OPTIONS(wn_logits_options, .doc_start = x.batch.doc_start),
                            logits));
    double expected = 0;
    for (int m = 0; m < 22; m++) {
      double sum = 0;
      if (x.targets[m] < 0) continue;
      for (int v = 0; v < 13; v++) sum += exp((double)logits[m * 13 + v]);
      expected += log(sum) - (double)logits[m * 13 + x.targets[m]];
    }
    wn_workspace *ws;
    OK(ctx, wn_workspace_create(ctx, model, 2, 11, &(struct wn_workspace_options){0}, &ws));
    struct wn_step_result r;
    OK(ctx, wn_model_step(model, ws, &x.batch, &(struct wn_step){.loss_scale = 1}, &r));
    if (!(fabs(r.loss_sum - expected) < 1e-5 * expected))
      fail_msg("%s: loss %g, from logits %g", model_cases[k].name, r.loss_sum, expected);
    wn_workspace_destroy(ws);
    wn_model_destroy(model);
    wn_context_destroy(ctx);
  }
}

static void test_no_allocation(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  const wn_model_config c = model_case_config(&model_cases[7]);
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  struct tokens x;
  tokens_of(&x, 2, 13, c.vocab_size, true);
  for (int recompute = 0; recompute < 2; recompute++) {
    wn_workspace *ws;
    const struct wn_workspace_options options = {
        .backward = true, .recompute = recompute != 0, .activation_dtype = WN_F32};
    OK(ctx, wn_workspace_create(ctx, model, 2, 13, &options, &ws));
    assert_true(wn_workspace_bytes(ws) > 0);
    float *grads = calloc(model->table.total, sizeof *grads);
    wn_memory_info before, after;
    wn_memory_info_get(&before);
    struct wn_step_result r;
    const struct wn_step step = {.grads = grads, .loss_scale = 1, .mem_scale = 1, .span_scale = 1, .training = true};
    OK(ctx, wn_model_step(model, ws, &x.batch, &step, &r));
    wn_memory_info_get(&after);
    assert_int_equal(before.total_allocations, after.total_allocations);
    free(grads);
    wn_workspace_destroy(ws);
  }
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  const wn_model_config c = model_case_config(&model_cases[0]);
  struct wn_model *model = model_of(ctx, &c, WN_F32), *wide;
  struct tokens x;
  tokens_of(&x, 2, 13, c.vocab_size, true);
  wn_workspace *ws, *none;
  struct wn_workspace_options options = {0};
  struct wn_step_result r;
  assert_int_equal(wn_model_create_dtype(ctx, &c, 1, WN_F64, &wide), WN_ERR_UNSUPPORTED);
  assert_int_equal(wn_workspace_create(ctx, model, 2, 17, &options, &none), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "context"));
  assert_int_equal(wn_workspace_create(ctx, model, 0, 4, &options, &none), WN_ERR_ARGUMENT);
  assert_int_equal(wn_workspace_create(ctx, model, INT64_MAX / 2, 4, &options, &none), WN_ERR_ARGUMENT);
  OK(ctx, wn_workspace_create(ctx, model, 2, 13, &options, &ws));
  float grads = 0;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){.grads = &grads}, &r), WN_ERR_ARGUMENT);
  struct wn_batch batch = x.batch;
  batch.B = 3;
  assert_int_equal(wn_model_step(model, ws, &batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT);
  x.doc_start[3] = 4;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT);
  assert_non_null(strstr(wn_context_error(ctx), "doc_start[0,3]"));
  x.doc_start[3] = 0;
  x.ids[5] = 13;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT);
  x.ids[5] = 0;
  x.targets[4] = 13;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT);
  for (int i = 0; i < 26; i++) x.targets[i] = -2;
  assert_int_equal(wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r), WN_ERR_ARGUMENT);
  for (int i = 0; i < 26; i++) x.targets[i] = -1;
  OK(ctx, wn_model_step(model, ws, &x.batch, &(struct wn_step){0}, &r));
  assert_true(r.counted == 0 && r.loss_sum == 0);
  wn_workspace_destroy(ws);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* The model sizes published in the paper, with an embedding table of 7,964 entries. */
static void test_parameter_counts(void **state) {
  (void)state;
  static const struct {
    int64_t d;
    double published;
  } rows[] = {{8, 33603584}, {12, 97615872}, {16, 218226688}};
  wn_context *ctx = context_of("cpu", 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    wn_model_config c;
    wn_model_config_init(&c);
    c.vocab_size = 7964;
    c.context = 512;
    c.layers = c.heads = rows[i].d;
    c.width = 64 * rows[i].d;
    c.qk_norm = true;
    OK(ctx, wn_model_config_resolve(ctx, &c));
    struct wn_param_table table;
    OK(ctx, wn_param_table_create(ctx, &c, &table));
    double count = 0;
    for (int t = 0; t < table.count; t++) count += (double)table.rows[t].count;
    if (!(fabs(count / rows[i].published - 1) < 0.003))
      fail_msg("d = %lld: %.0f parameters, published %.0f", (long long)rows[i].d, count, rows[i].published);
    wn_param_table_clear(&table);
  }
  wn_context_destroy(ctx);
}

static void test_start(void **state) {
  (void)state;
  wn_context *one = context_of("cpu", 1), *two = context_of("ref", 2);
  wn_model_config c = model_case_config(&model_cases[12]);
  c.width = 96; /* tensors large enough to be divided */
  wn_model *a, *b, *other;
  OK(one, wn_model_create(one, &c, 5, &a));
  OK(two, wn_model_create(two, &c, 5, &b));
  OK(one, wn_model_create(one, &c, 6, &other));
  assert_memory_equal(reach(a->params), reach(b->params), a->table.total * sizeof(float));
  assert_memory_not_equal(reach(a->params), reach(other->params), a->table.total * sizeof(float));
  for (int t = 0; t < a->table.count; t++) {
    wn_safetensors_entry e;
    OK(one, wn_model_tensor_at(a, t, &e));
    assert_int_equal(wn_param_find(&a->table, e.name), t);
    double sum = 0, square = 0;
    const size_t n = e.bytes / sizeof(float);
    for (size_t i = 0; i < n; i++) sum += get(e.data, i, WN_F32), square += pow(get(e.data, i, WN_F32), 2);
    const struct wn_param *row = &a->table.rows[t];
    if (row->init_std > 0) {
      assert_true(row->decay);
      assert_true(fabs(sqrt(square / (double)n) / row->init_std - 1) < 0.2);
    } else {
      assert_true(fabs(sum - (double)n * row->init_value) < 1e-6);
    }
  }
  wn_safetensors_entry e;
  assert_int_equal(wn_model_tensor_at(a, a->table.count, &e), WN_ERR_ARGUMENT);
  wn_model_destroy(a);
  wn_model_destroy(b);
  wn_model_destroy(other);
  wn_context_destroy(one);
  wn_context_destroy(two);
}

/* The options save memory. */
static void test_memory(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 16;
  c.context = 64;
  c.layers = 12;
  c.width = 64;
  c.heads = 4;
  c.qk_norm = true;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  const struct wn_workspace_options options[] = {
      {.backward = true}, {.backward = true, .activation_dtype = WN_BF16}, {.backward = true, .recompute = true}, {0}};
  size_t bytes[4];
  for (int i = 0; i < 4; i++) {
    wn_workspace *ws;
    OK(ctx, wn_workspace_create(ctx, model, 4, 64, &options[i], &ws));
    bytes[i] = wn_workspace_bytes(ws);
    wn_workspace_destroy(ws);
  }
  assert_true(bytes[1] * 5 < bytes[0] * 3);
  assert_true(bytes[2] * 4 < bytes[0]);
  assert_true(bytes[3] < bytes[2]);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* Noise on gates: a number of the seed and the step, in training alone; it has gradients (test_model_gradients). */
static void test_gate_noise(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  double loss[2][4];
  for (int noise = 0; noise < 2; noise++) {
    struct model_case k = {.name = "noise", .position = WN_POS_ROPE, .kv_heads = 2};
    k.attention = noise ? "{\"write\":{\"window\":2,\"noise\":true}}" : "{\"write\":{\"window\":2}}";
    const wn_model_config c = model_case_config(&k);
    struct wn_model *model = model_of(ctx, &c, WN_F32);
    struct tokens x;
    tokens_of(&x, 2, 13, c.vocab_size, false);
    wn_workspace *ws;
    OK(ctx, wn_workspace_create(ctx, model, 2, 13, &(struct wn_workspace_options){0}, &ws));
    for (int i = 0; i < 4; i++) { /* evaluation, a step, the same again, another */
      struct wn_step_result r;
      const struct wn_step step = {.training = i > 0, .seed = 4, .step = i == 3};
      OK(ctx, wn_model_step(model, ws, &x.batch, &step, &r));
      loss[noise][i] = r.loss_sum;
    }
    wn_workspace_destroy(ws);
    wn_model_destroy(model);
  }
  wn_context_destroy(ctx);
  assert_true(loss[1][0] == loss[0][0] && loss[0][1] == loss[0][0]);
  assert_true(loss[1][1] != loss[1][0] && loss[1][2] == loss[1][1] && loss[1][3] != loss[1][1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gradients_not_begun),
      cmocka_unit_test(test_same_result),
      cmocka_unit_test(test_micro_batches),
      cmocka_unit_test(test_memory_loss_of_documents),
      cmocka_unit_test(test_logits),
      cmocka_unit_test(test_gate_noise),
      cmocka_unit_test(test_no_allocation),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_parameter_counts),
      cmocka_unit_test(test_start),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
