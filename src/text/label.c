/* What to write for a token by itself: in scores, and wherever tokens are listed. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "text/normalize.h"
#include "text/utf8.h"
#include "winnow/tokenizer.h"

wn_status wn_tokenizer_token_label(wn_context *ctx, const wn_tokenizer *tok, int32_t id, bool begins, char **text,
                                   size_t *bytes) {
  size_t bad, named;
  WN_TRY(wn_tokenizer_token_bytes(ctx, tok, id, begins, text, bytes));
  const char *name = *bytes == 0 && wn_tokenizer_is_control(tok, id) ? wn_tokenizer_token_name(tok, id, &named) : NULL;
  const bool whole = wn_utf8_check(*text, *bytes, &bad);
  if (whole && !name) return WN_OK;
  struct wn_bytes out = {0};
  wn_status status = name ? wn_bytes_add(ctx, &out, name, named) : wn_bytes_add(ctx, &out, "bytes:", strlen("bytes:"));
  for (size_t i = 0; !whole && i < *bytes && status == WN_OK; i++) {
    const unsigned char byte = (unsigned char)(*text)[i];
    char shown[8] = {(char)byte, 0};
    if (byte < ' ' || byte > '~' || byte == '\\') snprintf(shown, sizeof shown, "\\x%02x", byte);
    status = wn_bytes_add(ctx, &out, shown, strlen(shown));
  }
  wn_text_free(*text);
  *text = out.data;
  *bytes = out.count;
  return status;
}
