// Opening a database file: who made it, is it ours, which journal fits its file system.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "schedule/base/error.h"
#include "traces/migrate.h"
#include "traces/store_impl.h"

namespace steptwin {
namespace {

// File systems on which the shared memory of write-ahead logging does not work across hosts (statfs(2), specs/ux.md 11.1).
struct NetworkFileSystem {
  std::uint32_t magic;
  const char* name;
};
constexpr std::array kNetworkFileSystems = {
    NetworkFileSystem{0x6969, "NFS"},      NetworkFileSystem{0x0BD00BD0, "Lustre"}, NetworkFileSystem{0x47504653, "GPFS"},
    NetworkFileSystem{0xFF534D42, "CIFS"}, NetworkFileSystem{0xFE534D42, "SMB2"},   NetworkFileSystem{0x65735546, "FUSE"},
    NetworkFileSystem{0x01021997, "9p"},
};

std::string directory_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

const char* network_file_system_of(const std::string& directory) {
  struct statfs info {};
  if (statfs(directory.c_str(), &info) != 0) return nullptr;
  for (const auto& [magic, name] : kNetworkFileSystems)
    if (static_cast<std::uint32_t>(info.f_type) == magic) return name;
  return nullptr;
}

// Switching to WAL needs the file for a moment and does not wait for it by itself.
void set_journal_mode(Database& database, const char* mode) {
  using namespace std::chrono_literals;
  const auto give_up = std::chrono::steady_clock::now() + 30s;
  while (!database.try_execute(fmt::format("PRAGMA journal_mode = {}", mode))) {
    if (std::chrono::steady_clock::now() > give_up) database.fail("cannot write");
    std::this_thread::sleep_for(5ms);
  }
}

[[noreturn]] void not_writable(const std::string& path, int code) {
  throw EnvironmentError(EnvironmentError::Kind::Database, fmt::format("cannot write the database {}: {}", path, std::strerror(code)),
                         "name a database that you may write with --db FILE or STEPTWIN_DB");
}

// SQLite opens what it may not write for reading, and says so only at the first write.
void require_writable(const Database& database) {
  if (!database.writable()) not_writable(database.path(), EROFS);
}

bool is_regular(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

void create_or_clean_up(Database& database, bool existed) {
  if (existed && !is_regular(database.path())) database.execute("PRAGMA journal_mode = MEMORY");  // no journal file beside a device
  try {
    create_schema(database);
  } catch (const EnvironmentError&) {
    std::error_code ignored;
    if (!existed && is_regular(database.path()) && std::filesystem::file_size(database.path(), ignored) == 0)
      std::filesystem::remove(database.path(), ignored);  // leave no empty file behind
    throw;
  }
}

void prepare_for_writing(Database& database, bool existed, std::vector<std::string>& warnings) {
  const Contents contents = check_contents(database);
  require_writable(database);
  if (contents == Contents::Empty) create_or_clean_up(database, existed);
  database.own();
  migrate(database, known_migrations());
  if (const char* name = network_file_system_of(directory_of(database.path()))) {
    set_journal_mode(database, "DELETE");
    warnings.push_back(
        fmt::format("{} lies on a network file system ({}): using a rollback journal; "
                    "set STEPTWIN_DB to a local disk for speed",
                    database.path(), name));
  } else {
    set_journal_mode(database, "WAL");
  }
  database.execute("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY");
}

void prepare_for_reading(Database& database) {
  if (check_contents(database) == Contents::Empty) {
    throw EnvironmentError(EnvironmentError::Kind::Database, database.path() + " is empty: it holds no steptwin database",
                           "name the right file with --db FILE, or make a run first: steptwin simulate SCENARIO");
  }
  if (database.integer("PRAGMA user_version") < kSchemaVersion) {
    throw EnvironmentError(EnvironmentError::Kind::Database, database.path() + " was written by an older steptwin",
                           "any command that writes to it, such as `steptwin simulate`, brings it up to date");
  }
  database.execute("PRAGMA query_only = ON; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 268435456");
}

// On read-only media a database in WAL mode can only be read as immutable, which is right when no log lies beside it.
Database::Mode mode_for(const std::string& path, Store::Access wanted) {
  if (wanted == Store::Access::ReadWrite) return Database::Mode::Create;
  const bool frozen = access(directory_of(path).c_str(), W_OK) != 0 && !std::filesystem::exists(path + "-wal");
  return frozen ? Database::Mode::Immutable : Database::Mode::ReadOnly;
}

// SQLite's own answers for these cases name the wrong cause, because it falls back to reading before it gives up.
void require_openable(const std::string& path, Store::Access wanted) {
  struct stat info {};
  const bool found = stat(path.c_str(), &info) == 0;
  if (found && S_ISDIR(info.st_mode)) not_writable(path, EISDIR);
  if (!found && wanted == Store::Access::ReadOnly) {
    throw EnvironmentError(EnvironmentError::Kind::Database, fmt::format("cannot open the database {}: {}", path, std::strerror(errno)),
                           "name the right file with --db FILE, or make a run first: steptwin simulate SCENARIO");
  }
  if (wanted == Store::Access::ReadOnly) return;
  std::error_code ignored;
  const std::string real = found ? std::filesystem::canonical(path, ignored).string() : path;  // the logs lie beside the real file
  if (found && access(path.c_str(), R_OK | W_OK) != 0) not_writable(path, errno);
  if (access(directory_of(real).c_str(), W_OK | X_OK) != 0) not_writable(path, errno);
}

}  // namespace

Store::Impl::Impl(const std::string& path, Access access) : database(path, mode_for(path, access)) {}

Store::Store(const std::string& path, Access access) {
  require_openable(path, access);
  const bool existed = std::filesystem::exists(path);
  impl_ = std::make_unique<Impl>(path, access);
  if (access == Access::ReadWrite)
    prepare_for_writing(impl_->database, existed, impl_->warnings);
  else
    prepare_for_reading(impl_->database);
}

Store::~Store() = default;
Store::Store(Store&&) noexcept = default;

const std::vector<std::string>& Store::warnings() const { return impl_->warnings; }
const std::string& Store::path() const { return impl_->database.path(); }

}  // namespace steptwin
