/* What the host has written, shown to operations, and what they have computed, read by the host: copies where the
 * backend's memory is not the host's, else nothing. */
#include "base/memory.h"
#include "decode/session.h"
#include "model/model.h"

wn_status wn_session_show(const struct wn_model *model, void *shown, const void *at, size_t n) {
  return shown == at ? WN_OK : model->backend->memory->copy_in(model->ctx, shown, at, n);
}

wn_status wn_session_read(const struct wn_model *model, void *to, const void *at, size_t n) {
  return to == at ? WN_OK : wn_memory_read(model->ctx, model->backend->memory, to, at, n);
}
