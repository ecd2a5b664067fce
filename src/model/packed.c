/* Where operations read packed matrices: on the host in the mapped file; on another backend in one array of its memory,
 * into which they are copied when the model is made. Nothing points into the file then. */
#include "base/file.h"
#include "model/model.h"

static size_t packed_room(const struct wn_param *row, const struct wn_packed_part *part) {
  return (wn_packed_part_bytes(part, row->shape[1]) + WN_ALIGN - 1) / WN_ALIGN * WN_ALIGN;
}

bool wn_model_is_packed(const struct wn_model *model) {
  for (int i = 0; i < model->table.count; i++)
    if (model->table.rows[i].packed.count) return true;
  return false;
}

bool wn_model_rounds(const struct wn_model *model) {
  for (int i = 0; i < model->table.count; i++) {
    const struct wn_packed *matrix = &model->table.rows[i].packed;
    for (int p = 0; p < matrix->count; p++)
      if (matrix->part[p].type >= WN_GGUF_BF16) return true;
  }
  return false;
}

wn_status wn_model_take_packed(wn_context *ctx, struct wn_model *model) {
  const struct wn_memory *memory = model->backend->memory;
  size_t all = 0;
  if (memory->host) return WN_OK;
  for (int i = 0; i < model->table.count; i++)
    for (int p = 0; p < model->table.rows[i].packed.count; p++)
      all += packed_room(&model->table.rows[i], &model->table.rows[i].packed.part[p]);
  WN_TRY(memory->allocate(ctx, "packed weights", all, &model->packed));
  char *at = model->packed;
  for (int i = 0; i < model->table.count; i++) {
    struct wn_param *row = &model->table.rows[i];
    for (int p = 0; p < row->packed.count; p++) {
      struct wn_packed_part *part = &row->packed.part[p];
      const size_t bytes = wn_packed_part_bytes(part, row->shape[1]);
      WN_TRY(memory->copy_in(ctx, at, part->data, bytes));
      wn_map_release(part->data, bytes);
      part->data = at;
      at += packed_room(row, part);
    }
  }
  return WN_OK;
}
