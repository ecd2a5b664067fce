/* Packed matrices in the order that the backend's products read fastest (`strips` of struct wn_backend): one array with
 * copies, made once when a model is loaded. The file's pages are then given back to the system; they are read again
 * when something needs the file's order (rows of the token table, exact products). */
#include "base/file.h"
#include "model/model.h"

static size_t strips_of_part(const struct wn_model *model, const struct wn_param *row,
                             const struct wn_packed_part *part) {
  const size_t bytes = model->backend->strips_bytes(part->type, part->rows, row->shape[1]);
  return (bytes + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
}

void wn_model_make_strips(wn_context *ctx, struct wn_model *model) {
  const struct wn_exec exec = {.ctx = ctx, .backend = model->backend, .threads = ctx->threads, .dtype = WN_F32};
  size_t all = 0;
  if (!model->backend->strips_bytes) return;
  for (int i = 0; i < model->table.count; i++)
    for (int p = 0; p < model->table.rows[i].packed.count; p++)
      all += strips_of_part(model, &model->table.rows[i], &model->table.rows[i].packed.part[p]);
  if (all == 0 || model->backend->memory->allocate(ctx, "packed weights in strips", all, &model->strips) != WN_OK)
    return;
  char *at = model->strips;
  for (int i = 0; i < model->table.count; i++) {
    struct wn_param *row = &model->table.rows[i];
    for (int p = 0; p < row->packed.count; p++) {
      struct wn_packed_part *part = &row->packed.part[p];
      const size_t bytes = strips_of_part(model, row, part);
      if (bytes == 0) continue;
      model->backend->strips_make(&exec, part, row->shape[1], at);
      part->strips = at;
      at += bytes;
      wn_loading_add(ctx, bytes);
      wn_map_release(part->data, wn_packed_part_bytes(part, row->shape[1]));
    }
  }
}
