/* A report: one page with the results of runs, checkpoints, searches and comparisons, section by section. */
#include <stdio.h>
#include <string.h>

#include "base/misuse.h"
#include "base/options.h"
#include "report/section.h"

const char *wn_report_section(int i, const char **title) {
  const struct wn_section *section = wn_section_at(i);
  if (section && title) *title = section->title;
  return section ? section->name : NULL;
}

void wn_report_options_init(wn_report_options *options, size_t size) {
  WN_CHECK_OR(, WN_POINTER(options));
  wn_report_options o = {.tokens = 512, .models = 2, .policy = -1, .policy_count = -1, .document_token = -1};
  wn_options_default(&o, sizeof o, options, size);
}

/* Is `name` in the comma-separated list? */
static bool report_names_section(const char *names, const char *name) {
  const size_t n = strlen(name);
  for (const char *at = names;; at += strcspn(at, ",") + 1) {
    if (strcspn(at, ",") == n && !strncmp(at, name, n)) return true;
    if (!at[strcspn(at, ",")]) return false;
  }
}

static wn_status report_check_sections(wn_context *ctx, const char *names) {
  for (const char *at = names;; at++) {
    const size_t n = strcspn(at, ",");
    char all[400];
    size_t used = 0;
    bool known = false;
    for (int i = 0; i < wn_section_count() && used < sizeof all; i++) {
      const char *name = wn_section_at(i)->name;
      known |= strlen(name) == n && !strncmp(at, name, n);
      used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", name);
    }
    if (!known) return wn_fail(ctx, WN_ERR_ARGUMENT, "report: no section \"%.*s\"; expected %s", (int)n, at, all);
    at += n;
    if (!*at) return WN_OK;
  }
}

static unsigned report_has(const struct wn_report *r) {
  unsigned has = r->options->budgets ? WN_NEEDS_BUDGETS : 0;
  for (int i = 0; i < r->input_count; i++) {
    const struct wn_report_input *in = &r->inputs[i];
    if (in->log) has |= WN_NEEDS_RUNS;
    if (in->model) has |= WN_NEEDS_MODELS;
    if (in->search || in->compare) has |= WN_NEEDS_SEARCHES;
    if (in->answers) has |= WN_NEEDS_ANSWERS;
  }
  return has;
}

static wn_status report_draw(struct wn_report *r) {
  const unsigned has = report_has(r);
  for (int i = 0; i < wn_section_count(); i++) {
    const struct wn_section *section = wn_section_at(i);
    if ((section->needs & has) != section->needs) continue;
    if (r->options->sections && !report_names_section(r->options->sections, section->name)) continue;
    if (section->needs & WN_NEEDS_MODELS) WN_TRY(wn_report_load_models(r));
    r->heading = section->title;
    WN_TRY(section->draw(r));
    if (wn_context_cancelled(r->ctx)) return wn_fail(r->ctx, WN_ERR_CANCELLED, "report: cancelled");
  }
  return WN_OK;
}

static wn_status report_open_page(struct wn_report *r) {
  const wn_report_options *o = r->options;
  char title[600];
  snprintf(title, sizeof title, "%.400s%s", r->inputs[0].name, r->input_count > 1 ? " and others" : "");
  if (r->input_count == 2) snprintf(title, sizeof title, "%.250s and %.250s", r->inputs[0].name, r->inputs[1].name);
  const wn_page_options page = {.size = sizeof page,
                                .title = o->title ? o->title : title,
                                .lead = "What the models keep of their context, what they evict, and what that costs.",
                                .figures = o->figures,
                                .limit = o->limit};
  return wn_page_create(r->ctx, &page, &r->page);
}

wn_status wn_report_save(wn_context *ctx, const wn_report_options *options, const char *path, wn_report_result *out) {
  WN_CHECK_WORK(WN_POINTER(path));
  wn_report_options own;
  struct wn_report r = {.ctx = ctx, .options = &own};
  size_t bytes = 0;
  WN_TRY(WN_OPTIONS_READ(ctx, wn_report_options, options, &own));
  options = &own;
  if (options->tokens < 1 || options->models < 0 || options->policy_count > WN_POLICY_MAX)
    return wn_fail(ctx, WN_ERR_ARGUMENT,
                   "report: expected tokens of at least 1, models of at least 0, at most %d policies", WN_POLICY_MAX);
  if (options->sections) WN_TRY(report_check_sections(ctx, options->sections));
  r.command = options->command ? options->command : "wn_report_save";
  wn_status status = wn_report_find_inputs(&r);
  if (status == WN_OK) status = report_open_page(&r);
  if (status == WN_OK) status = report_draw(&r);
  if (status == WN_OK) status = wn_page_save(r.page, path, &bytes);
  wn_page_destroy(r.page);
  wn_report_clear_inputs(&r);
  if (status == WN_OK && out) *out = (wn_report_result){.bytes = bytes, .texts = r.texts};
  return status;
}
