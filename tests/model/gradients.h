/* Compares a model's gradient with central differences in double, tensor by tensor: along a random direction of the
 * whole tensor, and for a few single elements. */
#ifndef WN_TESTS_MODEL_GRADIENTS_H
#define WN_TESTS_MODEL_GRADIENTS_H

#include "model/models.h"
#include "reach.h"

struct probe {
  wn_context *ctx;
  struct wn_model *model;
  wn_workspace *ws;
  struct tokens x;
  struct wn_step step;
};

/* The objective that wn_model_step differentiates. */
static double objective(struct probe *p, void *grads) {
  struct wn_step_result r;
  struct wn_step step = p->step;
  step.grads = grads;
  OK(p->ctx, wn_model_step(p->model, p->ws, &p->x.batch, &step, &r));
  assert_true(r.counted > 0);
  return model_case_objective(&step, &r);
}

static double difference(struct probe *p, double *at, const double *direction, size_t n, double h) {
  for (size_t i = 0; i < n; i++) at[i] += h * direction[i];
  const double up = objective(p, NULL);
  for (size_t i = 0; i < n; i++) at[i] -= 2 * h * direction[i];
  const double down = objective(p, NULL);
  for (size_t i = 0; i < n; i++) at[i] += h * direction[i];
  return (up - down) / (2 * h);
}

static void check_gradients(const struct model_case *k) {
  struct probe p = {.step = model_case_step()};
  p.ctx = context_of("ref", 1);
  const wn_model_config c = model_case_config(k);
  p.model = model_of(p.ctx, &c, WN_F64);
  tokens_of(&p.x, 2, 11, c.vocab_size, k->packed);
  const struct wn_workspace_options options = {.backward = true, .activation_dtype = WN_F32};
  OK(p.ctx, wn_workspace_create(p.ctx, p.model, 2, 11, &options, &p.ws));
  double *grads = calloc(p.model->table.total, sizeof *grads);
  assert_non_null(grads);
  objective(&p, grads);
  for (int t = 0; t < p.model->table.count; t++) {
    const struct wn_param *row = &p.model->table.rows[t];
    double *at = (double *)reach(p.model->params) + row->offset, *g = grads + row->offset;
    double *direction = calloc(row->count, sizeof *direction);
    assert_non_null(direction);
    double expected = 0, size = 0;
    for (size_t i = 0; i < row->count; i++) {
      direction[i] = wn_random_normal(9, WN_STREAM_TEST, (uint64_t)t, i);
      expected += direction[i] * g[i];
      size += g[i] * g[i];
    }
    size = sqrt(size);
    if (!(size > 1e-7)) fail_msg("%s: the gradient of %s is nothing (%g)", k->name, row->name, size);
    const double found = difference(&p, at, direction, row->count, 2e-6);
    if (!(fabs(found - expected) < 2e-6 * size + 1e-9))
      fail_msg("%s: %s along a direction: %.12g by differences, %.12g by backward (norm %g)", k->name, row->name, found,
               expected, size);
    for (int e = 0; e < 3; e++) {
      const size_t i = (size_t)wn_random_below(4, WN_STREAM_TEST, (uint64_t)t, (uint64_t)e, row->count);
      memset(direction, 0, row->count * sizeof *direction);
      direction[i] = 1;
      const double one = difference(&p, at, direction, row->count, 1e-5);
      if (!(fabs(one - g[i]) < 2e-6 * size + 1e-9))
        fail_msg("%s: %s[%zu]: %.12g by differences, %.12g by backward", k->name, row->name, i, one, g[i]);
    }
    free(direction);
  }
  free(grads);
  wn_workspace_destroy(p.ws);
  wn_model_destroy(p.model);
  wn_context_destroy(p.ctx);
}

#endif
