/* Gates that read keys (attention/registry.h, from_keys; write-gated keys and values, arXiv 2512.17452, as its code has
 * it): each key-value head's network reads the head's key twice, normed before rotation and normed after it,
 *   [rms(k) r; rms(R k) s],   rms(x) = x / sqrt(mean(x^2) + 1e-6)
 * with gains r and s of all heads. inputs.c has the networks. Backward needs the keys before rotation, which
 * attention's have lost, so these are kept. Cost: 4 norms of D numbers a token and head. */
#include "attention/registry.h"
#include "model/layer.h"

void wn_input_keys_lay(const wn_model_config *c, bool reads, int64_t M, size_t element, struct wn_arrays *arrays,
                       struct wn_layer_acts *out) {
  const struct wn_array rows[] = {
      WN_ARRAY_SIZED(out->key, element, "keys that gates read", reads, WN_DIMS(M, c->kv_heads, c->head_size)),
      WN_ARRAY_SIZED(out->key_norms, element, "their norms", reads, WN_DIMS(M, c->kv_heads, 2 * c->head_size)),
      WN_ARRAY_SIZED(out->rstd_key, element, "rstd_key", reads, WN_DIMS(M, c->kv_heads, 2)),
  };
  WN_ARRAYS_LAY(arrays, rows);
}

/* The layer's keys, or their gradients, where attention has them: of each row `each` numbers from the one returned. */
static void *keys_of(const struct wn_run *run, void *qkv, void *k, int64_t *each) {
  const wn_model_config *c = &run->model->config;
  const int64_t D = c->head_size;
  *each = c->qk_norm ? c->kv_heads * D : (c->heads + 2 * c->kv_heads) * D;
  return c->qk_norm ? k : wn_element(qkv, c->heads * D, run->exec.dtype);
}

wn_status wn_input_keys_keep(struct wn_run *run, const struct wn_layer_acts *a) {
  const int64_t M = run->B * run->T, Hkv = run->model->config.kv_heads, D = run->model->config.head_size;
  int64_t each;
  const void *k = keys_of(run, a->qkv, a->k, &each);
  return wn_run_gather_forward(run, &(struct wn_gather){.B = 1,
                                                        .H = Hkv,
                                                        .T = M,
                                                        .D = D,
                                                        .x = k,
                                                        .s_x = {M * each, each, D},
                                                        .y = a->key,
                                                        .s_y = {M * Hkv * D, Hkv * D, D}});
}

/* The norm of head h's keys, before rotation or after it. */
static struct wn_norm keys_norm_of(const struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                   const struct wn_layer_acts *a, int64_t h, bool rotated) {
  const int64_t M = run->B * run->T, Hkv = in->groups, D = run->model->config.head_size, at = 2 * h + rotated;
  const wn_dtype dtype = run->exec.dtype;
  const int gain = run->model->layers[l].key_gain[in->slot];
  int64_t each = Hkv * D;
  const void *k = rotated ? keys_of(run, a->qkv, a->k, &each) : a->key;
  return (struct wn_norm){.rows = M,
                          .groups = 1,
                          .width = D,
                          .eps = 1e-6,
                          .x = wn_element(k, h * D, dtype),
                          .ldx = each,
                          .gain = wn_element(wn_run_param(run, gain), rotated * D, dtype),
                          .dgain = wn_element(wn_run_grad(run, gain), rotated * D, dtype),
                          .y = wn_element(a->key_norms, at * D, dtype),
                          .ldy = Hkv * 2 * D,
                          .rstd = wn_element(a->rstd_key, at * M, dtype)};
}

wn_status wn_input_keys_norm(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                             const struct wn_layer_acts *a) {
  for (int64_t i = 0; i < 2 * in->groups; i++) {
    const struct wn_norm n = keys_norm_of(run, l, in, a, i / 2, i % 2);
    WN_TRY(wn_run_norm_forward(run, &n));
  }
  return WN_OK;
}

wn_status wn_input_keys_norm_back(struct wn_run *run, int64_t l, const struct wn_attention_input *in,
                                  const struct wn_layer_acts *a, const struct wn_layer_temp *temp, bool rotated) {
  const int64_t D = run->model->config.head_size;
  int64_t each;
  void *d_k = keys_of(run, temp->d_qkv, temp->d_k, &each);
  for (int64_t h = 0; h < in->groups; h++) {
    struct wn_norm n = keys_norm_of(run, l, in, a, h, rotated);
    n.dy = wn_element(temp->d_key_norms, (2 * h + rotated) * D, run->exec.dtype), n.lddy = n.ldy;
    n.dx = wn_element(d_k, h * D, run->exec.dtype), n.lddx = each;
    n.accumulate_dx = true;
    WN_TRY(wn_run_norm_backward(run, &n));
  }
  return WN_OK;
}
