/* Parts of a serialized SentencePiece model (sentencepiece_model.proto), appended to a buffer. */
#ifndef WN_TEXT_SPM_PROTO_H
#define WN_TEXT_SPM_PROTO_H

#include "text/normalize.h"
#include "text/spm_check.h"
#include "text/spm_wire.h"

wn_status wn_proto_int(wn_context *ctx, struct wn_bytes *b, uint32_t field, int64_t value);
wn_status wn_proto_data(wn_context *ctx, struct wn_bytes *b, uint32_t field, const char *data, size_t bytes);
/* Appends a piece; `part` is a scratch buffer. */
wn_status wn_proto_piece(wn_context *ctx, struct wn_bytes *model, struct wn_bytes *part, const char *text, size_t bytes,
                         double score, int type /* enum wn_spm_piece_type */);

/* What follows the pieces: how the model was trained, and its normalisation. An id of -1: none. */
struct wn_proto_specs {
  bool unigram, byte_fallback, add_dummy_prefix, remove_extra_whitespaces;
  struct wn_spm_foreign foreign;
  const char *unknown;  /* what the unknown piece decodes to; NULL: SentencePiece's own */
  int32_t ids[3];       /* unknown, bos, eos */
  const char *texts[3]; /* their texts, [bytes], or NULL; SentencePiece finds these pieces by text */
  size_t bytes[3];
};
wn_status wn_proto_put_specs(wn_context *ctx, struct wn_bytes *model, struct wn_bytes *part,
                             const struct wn_proto_specs *specs);

#endif
