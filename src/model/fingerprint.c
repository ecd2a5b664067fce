/* A fingerprint of a model's parameters, to tell models apart: a hash of the flat array and of the packed matrices. */
#include <string.h>

#include "base/error.h"
#include "base/fingerprint.h"
#include "base/memory.h"
#include "model/model.h"

wn_status wn_model_fingerprint(const struct wn_model *model, char out[24]) {
  void *params;
  WN_TRY(wn_model_params_open(model, &params));
  wn_fingerprint(params, model->table.total * sizeof(float), out);
  WN_TRY(wn_model_params_close(model, params, false));
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_param *row = &model->table.rows[i];
    for (int p = 0; p < row->packed.count; p++) {
      const struct wn_packed_part *part = &row->packed.part[p];
      char both[2][24] = {{0}};
      const size_t bytes = wn_packed_part_bytes(part, row->shape[1]);
      void *data;
      memcpy(both[0], out, sizeof both[0]);
      WN_TRY(wn_memory_open(model->ctx, model->backend->memory, "packed weights", part->data, bytes, &data));
      wn_fingerprint(data, bytes, both[1]);
      WN_TRY(wn_memory_close(model->ctx, model->backend->memory, (void *)(uintptr_t)part->data, bytes, data, false));
      wn_fingerprint(both, sizeof both, out);
    }
  }
  return WN_OK;
}
