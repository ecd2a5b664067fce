/* A SentencePiece model file, looked at before SentencePiece sees it.
 * SentencePiece trusts its model files: a normalisation table whose double array points outside itself is read out of
 * bounds, and deep nests of prefixes overrun fixed result arrays. This walks the protobuf and the double array once
 * and refuses what could do harm; it also reports what encoding in pieces and decoding need to know. */
#ifndef WN_TEXT_SPM_CHECK_H
#define WN_TEXT_SPM_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

#define WN_SPM_USER_DEFINED 64
struct wn_spm_info {
  int32_t pieces;
  bool unigram, bpe, byte_fallback,
      charsmap;           /* the kind of model; bytes stand for unknown characters; text is rewritten */
  int user_defined_count; /* pieces that are always taken; of more than there is room for only the count */
  int32_t user_defined[WN_SPM_USER_DEFINED];
  bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces; /* of the normaliser */
  bool newline_inside;  /* a normalisation rule or a piece longer than it has a newline in it */
  char unk_surface[64]; /* what an unknown piece decodes to */
};

/* `name` stands for the file in the detail. */
wn_status wn_spm_check(wn_context *ctx, const char *name, const void *data, size_t bytes, struct wn_spm_info *info);

#endif
