/* For tests of single steps: a model, its trainer and its batches, made from a recipe. */
#ifndef WN_TESTS_TRAIN_BENCH_H
#define WN_TESTS_TRAIN_BENCH_H

#include <math.h>

#include "train/tiny.h"
#include "train/trainer.h"
#include "winnow/model.h"

struct bench {
  wn_context *ctx;
  wn_recipe recipe;
  wn_model *model;
  wn_trainer *trainer;
  wn_data_source *source;
  int64_t rows, T;
  int32_t *tokens, *targets, *doc_start;
};

static void bench_init(struct bench *b, const wn_recipe *recipe, const char *backend, int threads) {
  *b = (struct bench){.recipe = *recipe, .ctx = tiny_context(backend, threads)};
  wn_model_config *m = &b->recipe.model;
  wn_data_config_requirements(&b->recipe.data, &m->vocab_size, &m->context);
  must(b->ctx, wn_model_config_resolve(b->ctx, m));
  b->T = m->context;
  b->rows = recipe->train.batch * recipe->train.accumulate;
  must(b->ctx, wn_model_create(b->ctx, m, recipe->train.seed, &b->model));
  must(b->ctx, wn_trainer_create(b->ctx, b->model, &b->recipe.train, &b->trainer));
  must(b->ctx, wn_data_source_create(b->ctx, &b->recipe.data, "train", b->T, (int32_t)m->vocab_size, &b->source));
  const size_t n = (size_t)(b->rows * b->T);
  b->tokens = calloc(n, sizeof *b->tokens);
  b->targets = calloc(n, sizeof *b->targets);
  b->doc_start = calloc(n, sizeof *b->doc_start);
}

static void bench_clear(struct bench *b) {
  wn_data_source_destroy(b->source);
  wn_trainer_destroy(b->trainer);
  wn_model_destroy(b->model);
  wn_context_destroy(b->ctx);
  free(b->tokens), free(b->targets), free(b->doc_start);
}

static wn_status bench_step(struct bench *b, uint64_t step, wn_train_progress *p) {
  must(b->ctx, wn_data_source_batch(b->ctx, b->source, b->recipe.train.seed, step, b->rows, b->tokens, b->targets,
                                    b->doc_start));
  return wn_trainer_step(b->ctx, b->trainer, b->tokens, b->targets,
                         wn_data_source_packs(b->source) ? b->doc_start : NULL, p);
}

/* The distance of all gradients from those of `exact`, relative to their length. */
static UNUSED double bench_distance(const struct bench *b, const struct bench *exact) {
  double off = 0, all = 0;
  for (int i = 0; i < wn_model_tensor_count(b->model); i++) {
    wn_safetensors_entry x, y;
    must(b->ctx, wn_trainer_gradient_at(b->trainer, i, &x));
    must(b->ctx, wn_trainer_gradient_at(exact->trainer, i, &y));
    const float *got = x.data, *want = y.data;
    for (size_t k = 0; k < x.bytes / sizeof *got; k++) {
      off += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
      all += (double)want[k] * (double)want[k];
    }
  }
  return sqrt(off / all);
}

#endif
