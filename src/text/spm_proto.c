/* Writes sentencepiece_model.proto. */
#include "text/spm_proto.h"

#include <string.h>
#include "base/error.h"

static wn_status proto_varint(wn_context *ctx, struct wn_bytes *b, uint64_t value) {
  char bytes[10];
  size_t n = 0;
  for (; value >= 0x80; value >>= 7) bytes[n++] = (char)(unsigned char)(value | 0x80);
  bytes[n++] = (char)(unsigned char)value;
  return wn_bytes_add(ctx, b, bytes, n);
}

wn_status wn_proto_int(wn_context *ctx, struct wn_bytes *b, uint32_t field, int64_t value) {
  WN_TRY(proto_varint(ctx, b, field << 3));
  return proto_varint(ctx, b, (uint64_t)value);
}

wn_status wn_proto_data(wn_context *ctx, struct wn_bytes *b, uint32_t field, const char *data, size_t bytes) {
  WN_TRY(proto_varint(ctx, b, field << 3 | 2));
  WN_TRY(proto_varint(ctx, b, bytes));
  return wn_bytes_add(ctx, b, data, bytes);
}

wn_status wn_proto_piece(wn_context *ctx, struct wn_bytes *model, struct wn_bytes *part, const char *text, size_t bytes,
                         double score, int type) {
  const float value = (float)score;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const char fixed[5] = {2 << 3 | 5, (char)(unsigned char)bits, (char)(unsigned char)(bits >> 8),
                         (char)(unsigned char)(bits >> 16), (char)(unsigned char)(bits >> 24)};
  part->count = 0;
  WN_TRY(wn_proto_data(ctx, part, 1, text, bytes));
  WN_TRY(wn_bytes_add(ctx, part, fixed, sizeof fixed));
  WN_TRY(wn_proto_int(ctx, part, 3, type));
  return wn_proto_data(ctx, model, 1, part->data, part->count);
}

wn_status wn_proto_put_specs(wn_context *ctx, struct wn_bytes *model, struct wn_bytes *part,
                             const struct wn_proto_specs *s) {
  static const uint32_t number[3] = {40, 41, 42}, named[3] = {45, 46, 47};
  part->count = 0; /* TrainerSpec: model type, byte fallback, special ids */
  WN_TRY(wn_proto_int(ctx, part, 3, s->unigram ? 1 : 2));
  WN_TRY(wn_proto_int(ctx, part, 35, s->byte_fallback));
  for (int i = 0; i < 3; i++) WN_TRY(wn_proto_int(ctx, part, number[i], s->ids[i]));
  WN_TRY(wn_proto_int(ctx, part, 43, -1));
  if (s->unknown) WN_TRY(wn_proto_data(ctx, part, 44, s->unknown, strlen(s->unknown)));
  for (int i = 0; i < 3; i++)
    if (s->texts[i]) WN_TRY(wn_proto_data(ctx, part, named[i], s->texts[i], s->bytes[i]));
  WN_TRY(wn_proto_data(ctx, model, 2, part->data, part->count));
  part->count = 0; /* NormalizerSpec: no normalisation */
  WN_TRY(wn_proto_data(ctx, part, 1, "identity", 8));
  WN_TRY(wn_proto_int(ctx, part, 3, s->add_dummy_prefix));
  WN_TRY(wn_proto_int(ctx, part, 4, s->remove_extra_whitespaces));
  WN_TRY(wn_proto_int(ctx, part, 5, 1));
  const int64_t foreign = s->foreign.marked | s->foreign.prepend << 1 | s->foreign.strip << 3;
  if (foreign) WN_TRY(wn_proto_int(ctx, part, WN_SPM_FIELD, foreign));
  return wn_proto_data(ctx, model, 3, part->data, part->count);
}
