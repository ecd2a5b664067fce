/* Which recipes' models can be exported, and to what. Every decoder without recurrence in recipes/ exports to
 * transformers; those that have a family's shape export without winnow's own model code, and to llama.cpp. The counts
 * are those of docs/results/exports.md. */
#include "support.h"

#include <dirent.h>
#include "formats/export.h"
#include "winnow/train.h"

#define RECIPES WN_TEST_DIR "/../recipes/"
static wn_context *ctx;

struct counts {
  int recipes, adapted, hf, family, gguf;
};

static const char *plan(const wn_model_config *config, wn_convert_form to, struct wn_export *e) {
  struct wn_import from = {.form = WN_FORM_WINNOW, .where = "recipe", .names = &wn_names_own, .config = *config};
  const wn_convert_options o = {.size = sizeof o, .to = to};
  const wn_status status = wn_export_plan(ctx, &from, &o, e);
  if (status != WN_OK) assert_int_equal(status, WN_ERR_UNSUPPORTED);
  return status == WN_OK ? e->architecture : NULL;
}

static void count_recipe(const char *name, struct counts *n) {
  char path[1024];
  wn_recipe recipe;
  struct wn_export e;
  const char *const sets[] = {"model.vocab_size=1024"};
  json_t *file;
  assert_true(snprintf(path, sizeof path, RECIPES "%s", name) < (int)sizeof path);
  file = json_load_file(path, 0, NULL);
  assert_non_null(file);
  const json_t *own = json_object_get(file, "model");
  const bool adapts = !own || !json_object_get(own, "layers"); /* adapts a given model */
  json_decref(file);
  n->recipes++;
  if (adapts) {
    n->adapted++;
    return;
  }
  assert_ok(ctx, wn_recipe_load(ctx, path, sets, 1, &recipe));
  assert_ok(ctx, wn_model_config_resolve(ctx, &recipe.model));
  const wn_model_config *c = &recipe.model;
  const char *hf = plan(c, WN_CONVERT_HF, &e);
  if ((hf == NULL) != (c->encoder.layers > 0 || c->recurrence > 0)) fail_msg("%s: %s", name, wn_context_error(ctx));
  const bool family = hf && strcmp(hf, "winnow") != 0;
  const char *gguf = plan(c, WN_CONVERT_GGUF, &e);
  n->hf += hf != NULL, n->family += family, n->gguf += gguf != NULL;
  if (!strcmp(name, "quickstart-standard.json")) {
    assert_string_equal(hf, "llama");
    assert_string_equal(gguf, "llama");
  }
  if (!strcmp(name, "gpt2-124m.json")) assert_string_equal(gguf, "gpt2");
  printf("# %s: hf %s, gguf %s\n", name, hf ? hf : "no", gguf ? gguf : "no");
}

static void recipes(void **state) {
  (void)state;
  struct counts n = {0};
  DIR *dir = opendir(RECIPES);
  assert_non_null(dir);
  for (const struct dirent *d; (d = readdir(dir));)
    if (strstr(d->d_name, ".json")) count_recipe(d->d_name, &n);
  closedir(dir);
  printf(
      "# of %d recipes %d adapt a model that is given; of the other %d %d leave for transformers, %d of them without "
      "code of ours, and %d for llama.cpp\n",
      n.recipes, n.adapted, n.recipes - n.adapted, n.hf, n.family, n.gguf);
  char counts[256];
  FILE *f = fopen(WN_TEST_DIR "/../docs/results/exports.md", "r");
  assert_non_null(f);
  snprintf(counts, sizeof counts, "| %d | %d | %d |\n", n.hf, n.family, n.gguf);
  bool found = false;
  for (char line[1024]; fgets(line, sizeof line, f);) found |= !strcmp(line, counts);
  fclose(f);
  if (!found) fail_msg("docs/results/exports.md has no row %s", counts);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(recipes)};
  ctx = make_context();
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  wn_context_destroy(ctx);
  return failed;
}
