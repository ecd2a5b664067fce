/* Why a request is refused, in an error that is valid JSON, and objects whose keys are all known. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "serve/request.h"
#include "text/utf8.h"

/* Removes an incomplete character at the end of a cut name, since JSON does not accept it. */
static void refuse_drop_cut(char *text) {
  char *out = text;
  for (size_t left = strlen(text); left > 0;) {
    const int n = wn_utf8_sequence(text, left);
    const size_t taken = n > 0 ? (size_t)n : 1;
    if (n > 0) memmove(out, text, taken), out += taken;
    text += taken, left -= taken;
  }
  *out = 0;
}

bool wn_serve_refuse(struct wn_serve_error *error, int status, const char *param, const char *format, ...) {
  va_list args;
  va_start(args, format);
  wn_print_list(error->message, sizeof error->message, format, args);
  va_end(args);
  error->status = status;
  error->type = status < 500 ? "invalid_request_error" : "server_error";
  snprintf(error->param, sizeof error->param, "%s", param);
  refuse_drop_cut(error->message);
  refuse_drop_cut(error->param);
  return false;
}

bool wn_serve_check_keys(const json_t *object, const char *where, const char *param, const char *const *keys, int count,
                         struct wn_serve_error *error) {
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    int i = 0;
    while (i < count && strcmp(keys[i], key) != 0) i++;
    if (i == count) return wn_serve_refuse(error, 400, param ? param : key, "%s: \"%.64s\" is not known", where, key);
  }
  return true;
}

bool wn_serve_may_fit(const struct wn_serve_model *m, const char *field, size_t bytes, struct wn_serve_error *error) {
  return bytes <= m->text_bytes ||
         wn_serve_refuse(error, 400, field, "%s: %zu bytes, more than the context of %lld tokens can hold (%zu)", field,
                         bytes, (long long)m->context, m->text_bytes);
}
