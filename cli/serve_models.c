#include "serve_models.h"

#include <stdlib.h>
#include <string.h>

#include "files.h"

/* Where the path begins in NAME=PATH; a path may have "=" as well. */
static const char *models_path(const char *item) {
  const char *equals = strchr(item, '=');
  const char *slash = strchr(item, '/');
  if (!equals || equals == item || !equals[1] || (slash && slash < equals) || cli_exists(item)) return item;
  return equals + 1;
}

/* The model's name as one line of UTF-8 for JSON and terminals: a file's name may be any bytes. `stem`: without the
 * file's kind. */
static char *models_name(const char *item, const char *path, bool stem) {
  char line[4096];
  wn_line_escape(item, line, sizeof line);
  if (path != item) { /* NAME= */
    line[strcspn(line, "=")] = 0;
    return strdup(line);
  }
  size_t n = strlen(line);
  while (n > 1 && line[n - 1] == '/') line[--n] = 0;
  const char *slash = strrchr(line, '/');
  char *name = slash && slash[1] ? line + (slash + 1 - line) : line, *kind = strrchr(name, '.');
  if (stem && kind && kind > name && (!strcmp(kind, ".gguf") || !strcmp(kind, ".safetensors"))) *kind = 0;
  return strdup(name);
}

int serve_models_read(const char *command, const struct cli_list *given, const char *name, struct serve_models *out) {
  const size_t n = (size_t)given->count;
  out->count = given->count;
  out->paths = calloc(n, sizeof *out->paths);
  out->names = calloc(n, sizeof *out->names);
  out->bytes = calloc(n, sizeof *out->bytes);
  if (!out->paths || !out->names || !out->bytes) return cli_error("out of memory");
  if (name && n > 1)
    return cli_usage_error(command, "--name is for one model; several have theirs as --model NAME=DIR");
  for (size_t i = 0; i < n; i++) {
    const char *item = given->items[i], *path = models_path(item);
    char line[4096];
    wn_line_escape(name ? name : "", line, sizeof line);
    out->paths[i] = path;
    out->names[i] = name ? strdup(line) : models_name(item, path, n > 1);
    if (!out->names[i]) return cli_error("out of memory");
    for (size_t k = 0; k < i; k++)
      if (!strcmp(out->names[k], out->names[i]))
        return cli_usage_error(command, "two models have the name %s: --model NAME=DIR", out->names[i]);
    if (n > 1 && !cli_exists(path)) return cli_error("%s: there is no such model", path);
    out->bytes[i] = cli_weights_bytes(path);
  }
  return 0;
}

void serve_models_clear(struct serve_models *models) {
  for (int i = 0; i < models->count && models->names; i++) free(models->names[i]);
  free(models->paths);
  free(models->names);
  free(models->bytes);
  *models = (struct serve_models){0};
}

wn_status serve_models_load(void *user, int model, wn_context **ctx, wn_model **out, wn_tokenizer **tok,
                            wn_budgets *budgets) {
  const struct serve_models *m = user;
  struct cli_loading load = *m->load;
  struct cli_loaded in = {0};
  load.model = m->paths[model];
  int code = cli_context_open(m->common, ctx);
  if (!code) code = cli_load(*ctx, "winnow serve", m->common, &load, true, &in);
  *out = in.model, *tok = in.tok, *budgets = in.budgets;
  if (code) return WN_ERR_IO;
  cli_note(m->common, "%s is loaded", m->names[model]);
  return WN_OK;
}
