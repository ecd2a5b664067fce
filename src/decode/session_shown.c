/* Copies between the host and the backend's memory, for what operations read and what they have computed; nothing to do
 * if the backend's memory is the host's. */
#include "base/memory.h"
#include "decode/session.h"
#include "model/model.h"

wn_status wn_session_show(const struct wn_model *model, void *shown, const void *at, size_t n) {
  return shown == at ? WN_OK : model->backend->memory->copy_in(model->ctx, shown, at, n);
}

wn_status wn_session_read(const struct wn_model *model, void *to, const void *at, size_t n) {
  return to == at ? WN_OK : wn_memory_read(model->ctx, model->backend->memory, to, at, n);
}
