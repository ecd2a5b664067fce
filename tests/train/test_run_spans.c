/* Runs of an encoder-decoder on span corruption: a text with a pattern is learned through the encoder; an interrupted
 * and resumed run ends with the same parameters; the run's evaluation equals the checkpoint's. */
#include "tiny.h"

#include <math.h>

#include "model/model.h"

enum { VOCAB = 40, SENTINELS = 10, TOKENS = 3000 };

/* The same token for a while: dropped tokens equal their neighbours, which only the encoder sees. */
static void write_tokens(wn_context *ctx, const char *path) {
  static int32_t ids[TOKENS];
  for (int i = 0; i < TOKENS; i++) ids[i] = 1 + i / 60 * 7 % 24;
  must(ctx, wn_token_file_write(ctx, path, "llmc", VOCAB, ids, TOKENS));
}

static void recipe_of(wn_recipe *r, const char *data, bool selective) {
  wn_recipe_init(r);
  r->data.kind = WN_DATA_SPAN_CORRUPTION;
  r->data.sentinels = SENTINELS;
  r->data.mean_span = 2;
  snprintf(r->data.train, sizeof r->data.train, "%s", data);
  snprintf(r->data.val, sizeof r->data.val, "%s", data);
  r->data.input_length = 32;
  r->model.vocab_size = VOCAB;
  r->model.context = 12;
  r->model.layers = 1;
  r->model.width = 32;
  r->model.heads = 4;
  r->model.kv_heads = r->model.head_size = 0;
  r->model.ffn_width = 64;
  r->model.ffn = WN_FFN_RELU;
  r->model.position = WN_POS_NONE;
  r->model.tied = true;
  r->model.init_std = 0.1;
  r->model.encoder.layers = 2;
  r->model.encoder.context = 32;
  r->model.attention.scale = 1;
  r->model.attention.buckets.enabled = true;
  r->model.attention.selective.enabled = selective;
  r->train.steps = 8;
  r->train.batch = 3;
  r->train.accumulate = 2;
  r->train.context = 12;
  r->train.lr = 5e-3;
  r->train.warmup = 2;
  r->train.schedule = WN_SCHED_CONSTANT;
  r->train.seed = 7;
  r->train.eval_every = 0;
  r->train.save_every = 0;
  r->train.log_every = 1;
}

static void keep_last(void *user, const wn_train_progress *p) {
  *(wn_train_progress *)user = *p;
}

static void stop_at_three(void *user, const wn_train_progress *p) {
  if (p->step == 3) wn_context_cancel(user);
}

static void test_resume(void **state) {
  (void)state;
  char dir[256], data[300], whole[300], parts[300];
  tiny_folder(dir);
  snprintf(data, sizeof data, "%s/t.bin", dir);
  snprintf(whole, sizeof whole, "%s/whole", dir);
  snprintf(parts, sizeof parts, "%s/parts", dir);
  wn_context *ctx = tiny_context("cpu", 1), *stopped = tiny_context("cpu", 1);
  write_tokens(ctx, data);
  wn_recipe r;
  recipe_of(&r, data, true);
  r.model.attention.dropout = r.model.dropout = 0.1;
  must(ctx, wn_train_run(ctx, &r, whole, false, NULL, NULL));
  assert_int_equal(wn_train_run(stopped, &r, parts, false, stop_at_three, stopped), WN_ERR_CANCELLED);
  must(ctx, wn_train_run(ctx, NULL, parts, true, NULL, NULL));
  assert_true(tiny_same_file(whole, parts, "model.safetensors"));
  assert_true(tiny_same_file(whole, parts, "optimizer.safetensors"));
  wn_context_destroy(stopped);
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

/* The loss of the first sequences, each with the inputs of the sequence `shift` further on. */
static double step_loss(wn_context *ctx, wn_model *model, const wn_data_source *source, int shift) {
  enum { B = 16, T = 12, S = 32 };
  int32_t tokens[B * T], targets[B * T], inputs[B * S], own[B * S], count[B], own_count[B];
  struct wn_step_result result;
  wn_workspace *ws;
  must(ctx, wn_data_source_batch(ctx, source, 0, 0, B, tokens, targets, NULL));
  must(ctx, wn_data_source_inputs(ctx, source, 0, 0, B, inputs, count));
  for (int b = 0; b < B; b++) {
    memcpy(own + b * S, inputs + (b + shift) % B * S, S * sizeof *own);
    own_count[b] = count[(b + shift) % B];
  }
  const struct wn_workspace_options options = {.activation_dtype = WN_F32};
  must(ctx, wn_workspace_create(ctx, model, B, T, &options, &ws));
  const struct wn_batch batch = {
      .B = B, .T = T, .tokens = tokens, .targets = targets, .S = S, .inputs = own, .input_count = own_count};
  must(ctx, wn_model_step(model, ws, &batch, &(struct wn_step){.loss_scale = 1}, &result));
  wn_workspace_destroy(ws);
  return result.loss_sum / (double)result.counted;
}

static void test_learns(void **state) {
  (void)state;
  char dir[256], data[300], run[300];
  tiny_folder(dir);
  snprintf(data, sizeof data, "%s/t.bin", dir);
  snprintf(run, sizeof run, "%s/run", dir);
  wn_context *ctx = tiny_context("cpu", 1);
  write_tokens(ctx, data);
  for (int selective = 0; selective < 2; selective++) {
    wn_recipe r;
    wn_train_progress last;
    recipe_of(&r, data, selective);
    r.train.steps = 150, r.train.batch = 16, r.train.accumulate = 1;
    r.train.eval_every = 150, r.train.eval_batches = 0;
    must(ctx, wn_train_run(ctx, &r, run, false, keep_last, &last));
    assert_true(last.evaluated);
    wn_model *model;
    wn_data_source *source;
    wn_eval_result result;
    must(ctx, wn_model_load(ctx, run, NULL, &model));
    must(ctx, wn_data_source_create(ctx, &r.data, "val", 12, VOCAB, &source));
    must(ctx, wn_eval(ctx, model, source, &(wn_eval_options){.size = sizeof(wn_eval_options), .batch = 5, .seed = 3},
                      &result));
    if (fabs(result.loss - last.val_loss) > 1e-5)
      fail_msg("%.9g in the run, %.9g evaluated", last.val_loss, result.loss);
    /* The information comes from the encoder: with other sequences' inputs the same model is worse. */
    const double with = step_loss(ctx, model, source, 0), without = step_loss(ctx, model, source, 1);
    if (!(with < 1 && without > 1.5 * with))
      fail_msg("loss %g with its own inputs, %g with those of other rows", with, without);
    wn_data_source_destroy(source);
    wn_model_destroy(model);
    tiny_remove(run);
  }
  wn_context_destroy(ctx);
  tiny_remove(dir);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  static const struct {
    const char *set[2], *part;
  } wrong[] = {
      {{"data.kind=span_corruption", "data.sentinels=30"}, "needs an encoder"},
      {{"model.encoder.layers=2", "model.width=64"}, "an encoder needs \"data.kind\""},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    wn_recipe r;
    assert_int_equal(wn_recipe_load(ctx, NULL, wrong[i].set, 2, &r), WN_ERR_CONFIG);
    if (!strstr(wn_context_error(ctx), wrong[i].part)) fail_msg("%s", wn_context_error(ctx));
  }
  wn_recipe r;
  const char *longer[] = {"data.kind=span_corruption", "model.position=none", "model.encoder.layers=1",
                          "model.encoder.context=64", "data.input_length=65"};
  assert_int_equal(wn_recipe_load(ctx, NULL, longer, 5, &r), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "\"data.input_length\" is 65"));
  must(ctx, wn_recipe_load(ctx, NULL, longer, 4, &r)); /* the lengths follow from the encoder's */
  assert_int_equal(r.data.input_length, 64);
  assert_int_equal(r.model.context, 14); /* 70 tokens: 10 dropped in 3 spans, and the end */
  assert_int_equal(r.train.context, 14);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_resume), cmocka_unit_test(test_learns),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
