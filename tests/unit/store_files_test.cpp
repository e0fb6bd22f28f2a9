// The database file: whom the store refuses, what it survives, who may use it at once, how it moves to a new version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/store_helpers.h"
#include "traces/database.h"
#include "traces/embedded.h"
#include "traces/migrate.h"
#include "traces/process_identity.h"

namespace steptwin {
namespace {

using test::error_of;
using test::in_child;
using test::open_store;
using test::read_file;
using test::rows;
using test::store_run;
using test::TemporaryFolder;
using testing::HasSubstr;

TEST(StoreFiles, ForeignNewerAndBrokenFilesStayAsTheyAre) {
  const TemporaryFolder folder;
  const std::string foreign = folder.file("foreign.db"), wal = folder.file("wal.db"), newer = folder.file("newer.db"),
                    text = folder.file("text.db"), cut = folder.file("cut.db");
  Database(foreign, Database::Mode::Create).execute("CREATE TABLE t(a); INSERT INTO t VALUES(1)");
  Database(wal, Database::Mode::Create).execute("PRAGMA journal_mode = WAL; CREATE TABLE t(a); INSERT INTO t VALUES(1)");
  { Store made = open_store(newer); }
  Database(newer, Database::Mode::Create).execute("PRAGMA user_version = 7");
  std::ofstream(text) << std::string(5000, 'x');
  std::ofstream(cut) << read_file(foreign).substr(0, 60);
  const std::pair<std::string, const char*> cases[] = {{foreign, "is not a steptwin database (application_id 0)"},
                                                       {wal, "is not a steptwin database"},
                                                       {newer, "newer steptwin (schema 7); this one knows schema 2"},
                                                       {text, "file is not a database"},
                                                       {cut, "malformed"}};
  for (const auto& [path, message] : cases) {
    const std::string before = read_file(path);
    for (const auto access : {Store::Access::ReadWrite, Store::Access::ReadOnly}) {
      EXPECT_THAT(error_of([&] { Store(path, access); }), HasSubstr(message)) << path;
      EXPECT_EQ(read_file(path), before) << path;
    }
  }
}

TEST(StoreFiles, UnusualPlacesGiveClearErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { Store(folder.file("none.db"), Store::Access::ReadOnly); }), HasSubstr("No such file or directory"));
  EXPECT_THAT(error_of([&] { open_store(folder.file("no/such/folder.db")); }), HasSubstr("No such file or directory"));
  EXPECT_THAT(error_of([&] { open_store(folder.path()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(error_of([&] { Store(folder.path(), Store::Access::ReadOnly); }), HasSubstr("Is a directory"));
  std::ofstream(folder.file("empty.db"));
  EXPECT_THAT(error_of([&] { Store(folder.file("empty.db"), Store::Access::ReadOnly); }), HasSubstr("is empty"));
  EXPECT_NO_THROW(open_store(folder.file("empty.db"))) << "an empty file becomes a database";
}

TEST(StoreFiles, FullDisk) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  EXPECT_THAT(error_of([&] { open_store("/dev/full"); }),
              HasSubstr("the database /dev/full: database or disk is full (No space left on device)"));
  EXPECT_FALSE(std::filesystem::exists("/dev/full-journal"));
}

// A file size limit stands for a disk that fills up in the middle of a run: the run fails, what was there stays.
TEST(StoreFiles, DiskThatFillsUpWhileStoring) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  Store first = open_store(path);
  store_run(first, test::pipeline_sample());
  const test::SampleRun large = test::large_sample(4, 30000);
  const int code = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{std::filesystem::file_size(path) + (1 << 20), RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    Store store = open_store(path);
    store_run(store, large);
    return 0;
  });
  EXPECT_EQ(code, 6);
  EXPECT_EQ(rows(first, "SELECT count(*) FROM spans"), (std::vector<std::string>{"18"}));
  EXPECT_EQ(Database(path, Database::Mode::ReadOnly).text("PRAGMA integrity_check"), "ok");
}

TEST(StoreFiles, ReadOnlyDirectoryAsAnUnprivilegedUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become someone else";
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  {
    Store store = open_store(path);
    store_run(store, test::pipeline_sample());
  }
  chmod(folder.path().c_str(), 0755);
  const auto as_nobody = [&](const std::string& file, Store::Access access) {
    return in_child([&] {
      if (setgid(65534) != 0 || setuid(65534) != 0) return 98;
      const std::string text = error_of([&] { Store(file, access); });
      if (text == "no error") return 0;
      std::fprintf(stderr, "%s\n", text.c_str());
      return text.find("Permission denied") != std::string::npos ? 6 : 97;
    });
  };
  EXPECT_EQ(as_nobody(folder.file("new.db"), Store::Access::ReadWrite), 6);
  EXPECT_EQ(as_nobody(path, Store::Access::ReadWrite), 6);
  EXPECT_EQ(as_nobody(path, Store::Access::ReadOnly), 0) << "reading needs no write permission";
  EXPECT_FALSE(std::filesystem::exists(folder.file("new.db")));
  chmod(path.c_str(), 0600);
  EXPECT_EQ(as_nobody(path, Store::Access::ReadOnly), 6);
}

TEST(StoreFiles, WritesAheadOnALocalDisk) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  EXPECT_EQ(store.warnings(), std::vector<std::string>{});
  EXPECT_EQ(Database(folder.file("a.db"), Database::Mode::ReadOnly).text("PRAGMA journal_mode"), "wal");
  EXPECT_EQ(Database(folder.file("a.db"), Database::Mode::ReadOnly).integer("PRAGMA application_id"), 1398036302);
  EXPECT_EQ(Database(folder.file("a.db"), Database::Mode::ReadOnly).integer("PRAGMA user_version"), kSchemaVersion);
}

TEST(StoreFiles, EmbeddedSchemaIsTheFile) { EXPECT_EQ(std::string(kSchemaSql[0].text), read_file(SOURCE_DIR "/traces/schema.sql")); }

TEST(StoreFiles, EveryViewAndTableIsDescribed) {
  const TemporaryFolder folder;
  Store store = open_store(folder.file("a.db"));
  const std::string page = read_file(SOURCE_DIR "/traces/SCHEMA.md");
  for (const std::string& name : rows(store, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"))
    EXPECT_THAT(page, HasSubstr("`" + name + "`"));
}

TEST(StoreProcesses, EightWritersOfOneNewDatabase) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  const test::SampleRun run = test::pipeline_sample();
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        Store store = open_store(path);
        store_run(store, run);
        code = 0;
      } catch (const EnvironmentError& e) {
        std::fprintf(stderr, "child: %s\n", e.what());
      } catch (...) {
      }
      _exit(code);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  Store store = open_store(path);
  EXPECT_EQ(rows(store, "SELECT count(*), count(DISTINCT uid), sum(status = 'ok') FROM runs"), (std::vector<std::string>{"8 8 8"}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM spans"), (std::vector<std::string>{"144"}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM schedule"), (std::vector<std::string>{"1"}));
}

TEST(StoreProcesses, KilledRunStaysRunningUntilCollected) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  const test::SampleRun large = test::large_sample(8, 30000);
  const pid_t child = fork();
  if (child == 0) {
    Store store = open_store(path);
    for (;;) store_run(store, large);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  Store store = open_store(path);
  EXPECT_EQ(Database(path, Database::Mode::ReadOnly).text("PRAGMA integrity_check"), "ok");
  const auto alive = store.begin_run(test::sample_info());  // ours: must not be collected
  const auto running = rows(store, "SELECT count(*) FROM runs WHERE status = 'running' AND id <> " + std::to_string(alive.id));
  EXPECT_EQ(std::to_string(store.gc()), running.at(0));
  EXPECT_EQ(rows(store, "SELECT id FROM runs WHERE status = 'running'"), (std::vector<std::string>{std::to_string(alive.id)}));
  EXPECT_EQ(rows(store, "SELECT count(*) FROM span WHERE run_id NOT IN (SELECT id FROM run WHERE status = 'ok')"),
            (std::vector<std::string>{"0"}));
  EXPECT_EQ(store.gc(), 0);
}

TEST(ProcessIdentity, TellsTheLivingFromTheDead) {
  const std::string self = process_identity(getpid());
  EXPECT_EQ(liveness_of(getpid(), self), Liveness::Alive);
  EXPECT_EQ(liveness_of(getpid(), self + "1"), Liveness::Dead) << "the pid was used again";
  EXPECT_EQ(liveness_of(getpid(), "other-boot " + self), Liveness::Dead);
  const std::string boot = self.substr(0, self.find(' '));
  EXPECT_EQ(liveness_of(getpid(), boot + " pid:[1] 5"), Liveness::Unknown) << "another container";
}

TEST(Migration, StepsForwardOnceInOrder) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  { Store made = open_store(path); }
  Database database(path, Database::Mode::Create);
  const Migration steps[] = {{kSchemaVersion, "CREATE TABLE added(a)"}, {kSchemaVersion + 1, "INSERT INTO added VALUES(2)"}};
  migrate(database, steps, kSchemaVersion + 2);
  migrate(database, steps, kSchemaVersion + 2);
  EXPECT_EQ(database.integer("PRAGMA user_version"), kSchemaVersion + 2);
  EXPECT_EQ(database.integer("SELECT count(*) FROM added"), 1);
  EXPECT_THAT(error_of([&] { migrate(database, steps, kSchemaVersion + 4); }), HasSubstr("no way leads from there"));
  EXPECT_EQ(database.integer("PRAGMA user_version"), kSchemaVersion + 2);
}

// The views of an older file become those of schema.sql.
TEST(Migration, BringsSchema1UpToDate) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  const auto view = [&] { return Database(path, Database::Mode::ReadOnly).text("SELECT sql FROM sqlite_schema WHERE name = 'comm_summary'"); };
  { Store made = open_store(path); }
  const std::string now = view();
  Database(path, Database::Mode::Create).execute("DROP VIEW comm_summary; CREATE VIEW comm_summary AS SELECT 1; PRAGMA user_version = 1");
  EXPECT_NE(view(), now);
  { Store again = open_store(path); }
  EXPECT_EQ(view(), now);
}

TEST(Migration, FailureLeavesTheOldVersion) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  { Store made = open_store(path); }
  Database database(path, Database::Mode::Create);
  const Migration steps[] = {{kSchemaVersion, "CREATE TABLE added(a)"}, {kSchemaVersion + 1, "INSERT INTO nowhere VALUES(2)"}};
  EXPECT_THROW(migrate(database, steps, kSchemaVersion + 2), EnvironmentError);
  EXPECT_EQ(database.integer("PRAGMA user_version"), kSchemaVersion);
  EXPECT_EQ(database.integer("SELECT count(*) FROM sqlite_schema WHERE name = 'added'"), 0);
}

TEST(Migration, TwoProcessesAtOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a.db");
  { Store made = open_store(path); }
  const Migration steps[] = {{kSchemaVersion, "CREATE TABLE added(a)"}};
  const auto work = [&] {
    Database database(path, Database::Mode::Create);
    migrate(database, steps, kSchemaVersion + 1);
    return 0;
  };
  std::vector<std::jthread> both;
  std::atomic<int> good{0};
  for (int i = 0; i < 2; ++i) both.emplace_back([&] { good += work() == 0 ? 1 : 0; });
  both.clear();
  EXPECT_EQ(good, 2);
}

}  // namespace
}  // namespace steptwin
