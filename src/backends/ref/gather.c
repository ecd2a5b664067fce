/* Copies rows to other places, as bytes, so that one source serves all types. Calls with few rows, as in every decoding
 * step, use one thread. */
#include "backends/ref/ref.h"

#include <string.h>

#include "tensor/f16.h"

/* The T rows of one head, at x and y. */
static void gather_head(const struct wn_gather *a, size_t e_x, size_t e_y, const char *x, const int32_t *index,
                        char *y) {
  const size_t row = (size_t)a->D * e_y;
  const bool whole = !index && a->s_x.t == a->D && a->s_y.t == a->D && e_x == e_y;
  if (whole) {
    memcpy(y, x, (size_t)a->T * row);
    return;
  }
  for (int64_t t = 0; t < a->T; t++) {
    const char *from = x + (size_t)((index ? index[t] : t) * a->s_x.t) * e_x;
    char *to = y + (size_t)(t * a->s_y.t) * e_y;
    if (e_x == e_y)
      memcpy(to, from, row);
    else
      wn_f16_from_f32(a->D, (const float *)(const void *)from, (uint16_t *)(void *)to);
  }
}

wn_status wn_ref_gather_forward(const struct wn_exec *exec, const struct wn_gather *a) {
  const size_t e = wn_dtype_size(exec->dtype), half = sizeof(uint16_t);
  const size_t e_x = a->x_half ? half : e, e_y = a->y_half ? half : e;
  const int64_t P = a->groups > 0 ? a->groups : 1;
  for (int64_t b = 0; b < a->B; b++) {
    for (int64_t h = 0; h < a->H; h++) {
      char *y = (char *)a->y + (size_t)(b * a->s_y.b + h * a->s_y.h) * e_y;
      if (a->x) {
        const int32_t *index = a->index ? a->index + (b * P + h / (a->H / P)) * a->T : NULL;
        gather_head(a, e_x, e_y, (const char *)a->x + (size_t)(b * a->s_x.b + h * a->s_x.h) * e_x, index, y);
      } else {
        for (int64_t t = 0; t < a->T; t++) memset(y + (size_t)(t * a->s_y.t) * e_y, 0, (size_t)a->D * e_y);
      }
    }
  }
  return WN_OK;
}
