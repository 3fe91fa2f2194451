/* nvrtc_find.c: where NVRTC is, and which build of it, without loading it. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gen/nvrtc/nvrtc.h"

/* What was tried, for the message. */
typedef struct tried {
  char text[640];
  size_t size;
} tried;

static void tried_add(tried *t, const char *what) {
  const int n = snprintf(t->text + t->size, sizeof t->text - t->size, "%s%s", t->size == 0 ? "" : ", ", what);
  if (n > 0 && t->size + (size_t)n < sizeof t->text)
    t->size += (size_t)n;
  else
    t->text[t->size] = 0; /* full: keep whole names only */
}

/* Reads the GNU build id, which every release of NVRTC has, from the ELF notes. */
static bool read_build_id(FILE *f, char *out, size_t out_size) {
  Elf64_Ehdr head;
  if (fread(&head, sizeof head, 1, f) != 1 || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof(Elf64_Phdr)) return false;
  for (unsigned i = 0; i < head.e_phnum; i++) {
    Elf64_Phdr segment;
    if (fseek(f, (long)(head.e_phoff + i * sizeof segment), SEEK_SET) != 0) return false;
    if (fread(&segment, sizeof segment, 1, f) != 1) return false;
    struct {
      Elf64_Nhdr head;
      char name[4];
      unsigned char id[20];
    } note;
    if (segment.p_type != PT_NOTE || segment.p_filesz < sizeof note) continue;
    if (fseek(f, (long)segment.p_offset, SEEK_SET) != 0 || fread(&note, sizeof note, 1, f) != 1) return false;
    if (note.head.n_type != NT_GNU_BUILD_ID || memcmp(note.name, "GNU", 4) != 0 || note.head.n_descsz < 20)
      continue;
    for (size_t j = 0; j < sizeof note.id && 2 * j + 2 < out_size; j++)
      snprintf(out + 2 * j, 3, "%02x", note.id[j]);
    return true;
  }
  return false;
}

/* Is there a file at `path`? Fills *out, or *why with what is wrong. A pipe is not opened, which would wait
 * for its writer. */
static bool look_at(const char *path, nvrtc_file *out, const char **why) {
  struct stat st;
  errno = 0;
  const bool found = stat(path, &st) == 0;
  FILE *f = found && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
  if (f == NULL) {
    *why = found && S_ISDIR(st.st_mode)    ? "is a folder"
           : found && !S_ISREG(st.st_mode) ? "is not a regular file"
           : errno == ENOENT               ? "there is no such file"
                                           : strerror(errno);
    return false;
  }
  snprintf(out->path, sizeof out->path, "%s", path);
  char id[48];
  if (read_build_id(f, id, sizeof id))
    snprintf(out->identity, sizeof out->identity, "build %s", id);
  else
    snprintf(out->identity, sizeof out->identity, "file of %lld bytes, changed at %lld",
             (long long)st.st_size, (long long)st.st_mtime);
  fclose(f);
  return true;
}

static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
enum { NUM_NAMES = sizeof names / sizeof names[0] };

static bool look_in(const char *folder, const char *sub, nvrtc_file *out, tried *t) {
  char path[512];
  const char *why;
  if (folder == NULL || folder[0] == 0) return false;
  for (int i = 0; i < NUM_NAMES; i++) {
    const int n = snprintf(path, sizeof path, "%s%s/%s", folder, sub, names[i]);
    if (n > 0 && (size_t)n < sizeof path && look_at(path, out, &why)) return true;
  }
  snprintf(path, sizeof path, "%s%s", folder, sub);
  tried_add(t, path);
  return false;
}

static bool look_in_list(const char *list, nvrtc_file *out, tried *t) {
  while (list != NULL && *list != 0) {
    const size_t n = strcspn(list, ":");
    char folder[512];
    if (n > 0 && n < sizeof folder) {
      memcpy(folder, list, n);
      folder[n] = 0;
      if (look_in(folder, "", out, t)) return true;
    }
    list += n + (list[n] == ':');
  }
  return false;
}

/* The dynamic loader knows places that we do not. It has to be asked by loading. */
static bool ask_loader(nvrtc_file *out, tried *t) {
  for (int i = 0; i < NUM_NAMES; i++) {
    tried_add(t, names[i]);
    void *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) continue;
    void *symbol = dlsym(handle, "nvrtcVersion");
    int (*version)(int *, int *) = NULL;
    memcpy(&version, &symbol, sizeof version);
    int major = 0, minor = 0;
    if (version == NULL || version(&major, &minor) != 0) continue;
    snprintf(out->path, sizeof out->path, "%s", names[i]);
    snprintf(out->identity, sizeof out->identity, "version %d.%d", major, minor);
    return true;
  }
  return false;
}

luattn_status nvrtc_find(const char *path, nvrtc_file *out, luattn_error *err) {
  static const char *const folders[] = {
      "/usr/local/cuda/lib64",      "/usr/local/cuda/lib", "/usr/lib/x86_64-linux-gnu",
      "/usr/lib/aarch64-linux-gnu", "/usr/lib64",          "/opt/cuda/lib64"};
  static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH"};
  const char *forced = path != NULL ? path : getenv("LUATTN_NVRTC");
  if (forced != NULL && forced[0] != 0) {
    const char *why;
    if (look_at(forced, out, &why)) return LUATTN_OK;
    return luattn_fail(err, LUATTN_COMPILE,
                       "nvrtc: '%s' (from %s): %s; name a libnvrtc.so, or leave it out to search the usual "
                       "places",
                       forced, path != NULL ? "the target" : "LUATTN_NVRTC", why);
  }
  tried t = {{0}, 0};
  if (look_in_list(getenv("LD_LIBRARY_PATH"), out, &t)) return LUATTN_OK;
  for (int i = 0; i < 2; i++) {
    const char *home = getenv(variables[i]);
    if (look_in(home, "/lib64", out, &t) || look_in(home, "/lib", out, &t)) return LUATTN_OK;
  }
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
    if (look_in(folders[i], "", out, &t)) return LUATTN_OK;
  if (ask_loader(out, &t)) return LUATTN_OK;
  return luattn_fail(err, LUATTN_COMPILE,
                     "nvrtc: library: not found; install the CUDA Toolkit 12 or newer, or `pip download "
                     "nvidia-cuda-nvrtc`, and "
                     "set LUATTN_NVRTC=/path/to/libnvrtc.so (tried %s)",
                     t.text);
}
