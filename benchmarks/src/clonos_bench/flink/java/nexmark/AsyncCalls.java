package nexmark;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.AsyncDataStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * A call per row with Flink's asynchronous I/O: the counterpart of the job of {@code clonos-bench calls}.
 *
 * <p>Arguments: folder, rows, rows per second (0: as fast as they are taken), how long a call takes in
 * ms, capacity, "ordered" or "unordered", then options of Flink, {@code key=value}.
 *
 * <p>Rows are due from the moment in the file {@code begin} on. What is asked, answered and comes out is
 * written into files of each process, as {@code clonos_bench.call_jobs} does.
 */
public final class AsyncCalls {
    private AsyncCalls() {}

    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        long rows = Long.parseLong(arguments[1]);
        double rate = Double.parseDouble(arguments[2]);
        long callMs = Long.parseLong(arguments[3]);
        int capacity = Integer.parseInt(arguments[4]);
        Map<String, String> options = new HashMap<>();
        for (int i = 6; i < arguments.length; i++) {
            int at = arguments[i].indexOf('=');
            options.put(arguments[i].substring(0, at), arguments[i].substring(at + 1));
        }
        StreamExecutionEnvironment environment =
                new StreamExecutionEnvironment(Configuration.fromMap(options));
        DataStream<Long> ids =
                environment
                        .fromSource(
                                new NumberSequenceSource(0, rows - 1),
                                WatermarkStrategy.noWatermarks(),
                                "rows")
                        .map(new Pace(folder, rows, rate))
                        .returns(Types.LONG);
        Ask ask = new Ask(folder, callMs);
        SingleOutputStreamOperator<Long> asked =
                arguments[5].equals("ordered")
                        ? AsyncDataStream.orderedWait(ids, ask, 60, TimeUnit.SECONDS, capacity)
                        : AsyncDataStream.unorderedWait(ids, ask, 60, TimeUnit.SECONDS, capacity);
        // The source sleeps until a row is due: in a thread of its own, so that nobody waits for it.
        asked
                .startNewChain()
                .map(new Out(folder, callMs == 0))
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
        environment.execute("calls");
    }

    private static double now() {
        Instant now = Instant.now();
        return now.getEpochSecond() + now.getNano() / 1e9;
    }

    /** What has happened in this process, in the order in which it was written. */
    private static final class Book {
        private static final Map<String, Book> BOOKS = new ConcurrentHashMap<>();
        private final FileOutputStream out;
        private final ByteBuffer event = ByteBuffer.allocate(17).order(ByteOrder.LITTLE_ENDIAN);

        private Book(String path) {
            try {
                out = new FileOutputStream(path, true);
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }

        static Book of(String folder, String kind) {
            String path = folder + "/" + ProcessHandle.current().pid() + "." + kind;
            return BOOKS.computeIfAbsent(path, Book::new);
        }

        synchronized void write(long number, boolean flag) {
            event.clear();
            event.putLong(number).putDouble(now()).put((byte) (flag ? 1 : 0));
            try {
                out.write(event.array());
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    }

    /** Gives every row when it is due, and tasks ids in turn, though the source gives them ranges. */
    private static final class Pace extends RichMapFunction<Long, Long> {
        private static final long serialVersionUID = 1L;
        private final String folder;
        private final long rows;
        private final double rate;
        private transient double beganS;
        private transient long share;
        private transient int parallelism;

        Pace(String folder, long rows, double rate) {
            this.folder = folder;
            this.rows = rows;
            this.rate = rate;
        }

        @Override
        public void open(OpenContext context) throws IOException, InterruptedException {
            parallelism = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
            share = rows / parallelism;
        }

        @Override
        public Long map(Long number) throws IOException {
            long id = number % share * parallelism + number / share;
            Path begin = Path.of(folder, "begin");
            while (beganS == 0) {
                if (Files.exists(begin)) {
                    beganS = Double.parseDouble(Files.readString(begin, StandardCharsets.UTF_8));
                } else {
                    LockSupport.parkNanos(1_000_000);
                }
            }
            if (rate > 0) {
                double waitS = beganS + id / rate - now();
                if (waitS > 0) {
                    LockSupport.parkNanos((long) (waitS * 1e9));
                }
            }
            return id;
        }
    }

    /** The service: a timer in the same process, so that its own cost is next to nothing. */
    private static final class Ask extends RichAsyncFunction<Long, Long> {
        private static final long serialVersionUID = 1L;
        private final String folder;
        private final long callMs;
        private transient Book book;
        private transient ScheduledExecutorService timer;

        Ask(String folder, long callMs) {
            this.folder = folder;
            this.callMs = callMs;
        }

        @Override
        public void open(OpenContext context) {
            book = Book.of(folder, "calls");
            timer = Executors.newSingleThreadScheduledExecutor();
        }

        @Override
        public void asyncInvoke(Long id, ResultFuture<Long> answer) {
            if (callMs == 0) {
                answer.complete(Collections.singleton(id));
                return;
            }
            book.write(id, false);
            timer.schedule(
                    () -> {
                        book.write(id, true);
                        answer.complete(Collections.singleton(id));
                    },
                    callMs,
                    TimeUnit.MILLISECONDS);
        }

        @Override
        public void close() {
            if (timer != null) {
                timer.shutdownNow();
            }
        }
    }

    /**
     * Writes down what comes out (of calls that are answered at once only how many rows), and, as
     * negative numbers, each beginning of a task and which checkpoints have begun and ended.
     */
    private static final class Out extends RichMapFunction<Long, Long>
            implements CheckpointedFunction, CheckpointListener {
        private static final long serialVersionUID = 1L;
        private static final long BEGIN = Long.MIN_VALUE;
        private final String folder;
        private final boolean isCounted;
        private transient Book book;
        private transient long rows;

        Out(String folder, boolean isCounted) {
            this.folder = folder;
            this.isCounted = isCounted;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {
            book = Book.of(folder, "outs");
            book.write(BEGIN, false);
        }

        @Override
        public Long map(Long id) {
            rows++;
            if (!isCounted) {
                book.write(id, false);
            }
            return id;
        }

        @Override
        public void close() {
            if (book != null && isCounted) {
                book.write(rows, false);
            }
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            book.write(-context.getCheckpointId(), false);
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            book.write(-checkpoint, true);
        }
    }
}
