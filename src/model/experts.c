/* A layer's mixture of experts: sets the operation's arguments from the table of parameters and the layer's arrays.
 * Each expert has two rows in the table, so that files, packing, optimizers and adapters treat its matrices as any
 * others. */
#include "model/layer.h"

static void expert_of(const struct wn_run *run, int in, int out, struct wn_expert *e) {
  *e = (struct wn_expert){.in = wn_run_param(run, in),
                          .out = wn_run_param(run, out),
                          .packed_in = wn_run_packed(run, in),
                          .packed_out = wn_run_packed(run, out),
                          .d_in = wn_run_grad(run, in),
                          .d_out = wn_run_grad(run, out)};
}

static struct wn_experts layer_experts(const struct wn_run *run, int64_t l, const struct wn_layer_acts *a,
                                       struct wn_expert expert[WN_EXPERTS_MAX]) {
  const wn_model_config *c = &run->model->config;
  const struct wn_layer_params *p = &run->model->layers[l];
  for (int e = 0; e < (int)c->experts.count; e++)
    expert_of(run, p->experts + 2 * e, p->experts + 2 * e + 1, &expert[e]);
  struct wn_experts x = {.M = run->B * run->T,
                         .T = run->T,
                         .C = c->width,
                         .E = c->experts.count,
                         .top = c->experts.active,
                         .F = c->ffn_width,
                         .S = c->experts.shared_width,
                         .normalize = c->experts.normalize,
                         .x = a->n2,
                         .router = wn_run_param(run, p->router),
                         .expert = expert,
                         .shared_gate = wn_run_param(run, p->shared_gate),
                         .prob = a->prob,
                         .weight = a->weight,
                         .chosen = a->chosen,
                         .place = a->place,
                         .in = a->in,
                         .shared_in = a->shared_in,
                         .shared_factor = a->shared_factor,
                         .shared_out = a->shared_out,
                         .row_count = run->row_count,
                         .d_router = wn_run_grad(run, p->router),
                         .d_shared_gate = wn_run_grad(run, p->shared_gate)};
  if (x.S > 0) expert_of(run, p->shared_in, p->shared_out, &x.shared);
  return x;
}

wn_status wn_layer_experts_forward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, void *y) {
  struct wn_expert expert[WN_EXPERTS_MAX];
  const struct wn_experts all = layer_experts(run, l, a, expert);
  const wn_dtype dtype = run->exec.dtype;
  for (struct wn_run_rows r = {0}; wn_run_rows_next(run, all.M, &r);) {
    struct wn_experts x = all;
    const int64_t row = r.first, chosen = row * x.top;
    x.M = r.count, x.rows_apart = r.apart;
    x.x = wn_element(x.x, row * x.C, dtype), x.y = wn_element(y, row * x.C, dtype);
    x.prob = wn_element(x.prob, row * x.E, dtype), x.weight = wn_element(x.weight, chosen, dtype);
    x.chosen += chosen, x.place += chosen;
    x.in = wn_element(x.in, chosen * wn_ffn_in_width(&run->model->config), dtype);
    x.shared_in = wn_element(x.shared_in, row * 2 * x.S, dtype);
    x.shared_factor = wn_element(x.shared_factor, row, dtype);
    x.shared_out = wn_element(x.shared_out, row * x.C, dtype);
    x.balance = a->balance;
    WN_TRY(wn_run_experts_forward(run, &x));
  }
  return WN_OK;
}

wn_status wn_layer_experts_backward(struct wn_run *run, int64_t l, struct wn_layer_acts *a, const void *dy, void *dx) {
  struct wn_expert expert[WN_EXPERTS_MAX];
  struct wn_experts x = layer_experts(run, l, a, expert);
  x.dy = dy;
  x.dx = dx;
  x.balance_scale = run->balance_coef;
  return wn_run_experts_backward(run, &x);
}
