/* Soft-capping of attention logits: Gemma 2, arXiv 2408.00118, section 2 (after Bello et al. 2016):
 *   L = cap tanh(L / cap),   dL = (1 - (L_capped / cap)^2) dL_capped
 * so that every logit lies in (-cap, cap), also those by which a head selects. Cost: one tanh per pair, about twenty
 * operations. For floats, tanh is computed as in Cephes: an odd polynomial below 0.625, 1 - 2 / (exp(2x) + 1) above.
 * number[0]: cap. */
#ifndef WN_OPS_TERM_SOFTCAP_H
#define WN_OPS_TERM_SOFTCAP_H

#include "ops/score.h"

WN_TERM float softcap_tanh(float x) {
#ifdef __CUDA_ARCH__ /* a device has its own */
  return tanhf(x);
#else
  const float size = fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  const float far = 1.0f - 2.0f / (wn_term_exp(2.0f * (size < 10.0f ? size : 10.0f)) + 1.0f);
  return size < 0.625f ? near : copysignf(far, x);
#endif
}

/* For a cap and its inverse, in any unit of the logits. */
WN_TERM float softcap_cap(float cap, float inverse, float logit) {
  return cap * softcap_tanh(logit * inverse);
}
WN_TERM float softcap_slope(float inverse, float y) {
  return 1.0f - y * inverse * (y * inverse);
}

WN_TERM float softcap_forward_float(const struct wn_score_map *t, float logit) {
  return softcap_cap((float)t->number[0], (float)(1 / t->number[0]), logit);
}
WN_TERM float softcap_backward_float(const struct wn_score_map *t, float y) {
  return softcap_slope((float)(1 / t->number[0]), y);
}
WN_TERM double softcap_forward_double(const struct wn_score_map *t, double logit) {
  return t->number[0] * tanh(logit / t->number[0]);
}
WN_TERM double softcap_backward_double(const struct wn_score_map *t, double y) {
  return 1 - y / t->number[0] * (y / t->number[0]);
}

#endif
