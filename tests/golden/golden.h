/* Shared by the tests with goldens of whole models. */
#ifndef WN_TESTS_GOLDEN_GOLDEN_H
#define WN_TESTS_GOLDEN_GOLDEN_H

#include "support.h"

#include "model/model.h"
#include "reach.h"

/* The loaded float model, or a new double model with its parameters. */
static inline struct wn_model *model_in(wn_context *ctx, struct wn_model *loaded, wn_dtype dtype) {
  if (dtype == WN_F32) return loaded;
  struct wn_model *model = NULL;
  assert_ok(ctx, wn_model_create_dtype(ctx, &loaded->config, 0, WN_F64, &model));
  assert_int_equal(model->table.total, loaded->table.total);
  for (size_t i = 0; i < model->table.total; i++)
    ((double *)reach(model->params))[i] = (double)((const float *)reach(loaded->params))[i];
  return model;
}

#endif
