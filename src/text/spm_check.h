/* Checks a SentencePiece model file before SentencePiece reads it. SentencePiece trusts its files: it reads out of
 * bounds if the double array of a normalisation table points outside itself, and long chains of prefixes overrun fixed
 * result arrays. This check walks the protobuf and the double array once and refuses what could do harm. It also
 * collects what encoding in pieces and decoding need to know. */
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
      charsmap;           /* model kind; unknown characters become bytes; the text is rewritten by rules */
  int user_defined_count; /* pieces that always match whole; only the count is right if there are too many */
  int32_t user_defined[WN_SPM_USER_DEFINED];
  bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces; /* settings of the normaliser */
  bool newline_inside;  /* a normalisation rule, or a piece of more than one byte, contains a newline */
  char unk_surface[64]; /* what an unknown piece decodes to */
};

/* `name` is the file's name in errors. */
wn_status wn_spm_check(wn_context *ctx, const char *name, const void *data, size_t bytes, struct wn_spm_info *info);

#endif
