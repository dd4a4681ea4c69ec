package nexmark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.columnar.ColumnarRowData;

/**
 * The rows of one kind. Tasks take blocks of events in turn, as in {@code clonos_bench.nexmark.source}.
 *
 * <p>With a pace, the first event is given out at {@code beganMs}, others as much later as their times
 * are; without (0), as fast as they are taken, but, a few rows aside, not before the {@link Gate}
 * is open.
 */
final class EventSource implements Source<RowData, EventSource.Share, Long> {
    private static final long serialVersionUID = 1L;
    private static final int BATCH_ROWS = 1024;
    private static final long NAP_MS = 2;

    private final Events.Kind kind;
    private final String[] columns;
    private final Settings settings;

    /** What the options of a table say. */
    record Settings(
            long events, long delayUs, long blockEvents, long beganMs, long watermarkMs,
            long aheadRows)
            implements java.io.Serializable {}

    /** What one task reads: which share, and the rows of it that it has given out. */
    record Share(int index, long done) implements SourceSplit {
        @Override
        public String splitId() {
            return Integer.toString(index);
        }
    }

    EventSource(Events.Kind kind, String[] columns, Settings settings) {
        this.kind = kind;
        this.columns = columns;
        this.settings = settings;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.BOUNDED;
    }

    @Override
    public SplitEnumerator<Share, Long> createEnumerator(SplitEnumeratorContext<Share> context) {
        return new Shares(context, 0L);
    }

    @Override
    public SplitEnumerator<Share, Long> restoreEnumerator(
            SplitEnumeratorContext<Share> context, Long assigned) {
        return new Shares(context, assigned);
    }

    @Override
    public SourceReader<RowData, Share> createReader(SourceReaderContext context) {
        return new Reader(context);
    }

    @Override
    public SimpleVersionedSerializer<Share> getSplitSerializer() {
        return new Longs<>() {
            @Override
            long[] numbers(Share share) {
                return new long[] {share.index(), share.done()};
            }

            @Override
            Share made(ByteBuffer numbers) {
                return new Share((int) numbers.getLong(), numbers.getLong());
            }
        };
    }

    @Override
    public SimpleVersionedSerializer<Long> getEnumeratorCheckpointSerializer() {
        return new Longs<>() {
            @Override
            long[] numbers(Long assigned) {
                return new long[] {assigned};
            }

            @Override
            Long made(ByteBuffer numbers) {
                return numbers.getLong();
            }
        };
    }

    /** Serializes as numbers of eight bytes. */
    private abstract static class Longs<T> implements SimpleVersionedSerializer<T> {
        abstract long[] numbers(T value);

        abstract T made(ByteBuffer numbers);

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(T value) {
            long[] numbers = numbers(value);
            ByteBuffer bytes = ByteBuffer.allocate(8 * numbers.length);
            bytes.asLongBuffer().put(numbers);
            return bytes.array();
        }

        @Override
        public T deserialize(int version, byte[] bytes) throws IOException {
            return made(ByteBuffer.wrap(bytes));
        }
    }

    /** Gives every task its share, once; which tasks have theirs are the bits of a number. */
    private static final class Shares implements SplitEnumerator<Share, Long> {
        private final SplitEnumeratorContext<Share> context;
        private final List<Share> returned = new ArrayList<>();
        private long assigned;

        Shares(SplitEnumeratorContext<Share> context, long assigned) {
            this.context = context;
            this.assigned = assigned;
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int subtask, String host) {}

        @Override
        public void addSplitsBack(List<Share> shares, int subtask) {
            returned.addAll(shares);
        }

        @Override
        public void addReader(int subtask) {
            for (Share share : List.copyOf(returned)) {
                if (share.index() == subtask) {
                    returned.remove(share);
                    context.assignSplit(share, subtask);
                }
            }
            if ((assigned & 1L << subtask) == 0) {
                assigned |= 1L << subtask;
                context.assignSplit(new Share(subtask, 0), subtask);
            }
        }

        @Override
        public Long snapshotState(long checkpoint) {
            return assigned;
        }

        @Override
        public void close() {}
    }

    /** Makes the rows of a share. */
    private final class Reader implements SourceReader<RowData, Share> {
        private final int parallelism;
        private final Events events;
        private final ColumnarRowData row;
        private final long rows;
        private final long blockRows;
        private final Executor later =
                CompletableFuture.delayedExecutor(NAP_MS, TimeUnit.MILLISECONDS);
        private CompletableFuture<Void> available = new CompletableFuture<>();
        private Share share;
        private long done;
        private long nextWatermarkMs;

        Reader(SourceReaderContext context) {
            parallelism = context.currentParallelism();
            events = new Events(kind, columns, settings.delayUs(), BATCH_ROWS);
            row = new ColumnarRowData(events.batch);
            rows = kind.rows(settings.events());
            blockRows = kind.rows(settings.blockEvents());
        }

        @Override
        public void start() {}

        @Override
        public void addSplits(List<Share> shares) {
            share = shares.get(0);
            done = share.done();
            available.complete(null);
        }

        @Override
        public InputStatus pollNext(ReaderOutput<RowData> output) {
            if (share == null) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            boolean isLetGo = settings.beganMs() > 0 || Gate.isOpen();
            long limit = isLetGo ? BATCH_ROWS : Math.min(BATCH_ROWS, settings.aheadRows() - done);
            if (limit <= 0) {
                return nap();
            }
            long place = done % blockRows;
            long first = (done / blockRows * parallelism + share.index()) * blockRows + place;
            int count = (int) Math.min(Math.min(limit, blockRows - place), rows - first);
            if (count <= 0) {
                return InputStatus.END_OF_INPUT;
            }
            if (settings.beganMs() > 0) {
                count = due(first, count);
            }
            if (count > 0) {
                events.fill(first, count);
                for (int i = 0; i < count; i++) {
                    row.setRowId(i);
                    output.collect(row);
                }
                done += count;
            }
            mark(output);
            if (count == 0) {
                return nap();
            }
            return InputStatus.MORE_AVAILABLE;
        }

        private InputStatus nap() {
            available = CompletableFuture.runAsync(() -> {}, later);
            return InputStatus.NOTHING_AVAILABLE;
        }

        /** How many of the rows exist by now. */
        private int due(long first, int count) {
            long until = Events.BASE_MS + System.currentTimeMillis() - settings.beganMs();
            int found = 0;
            while (found < count && events.timeMs(kind.id(first + found)) <= until) {
                found++;
            }
            return found;
        }

        /** All rows before the next one's time have been given out: said now and then. */
        private void mark(ReaderOutput<RowData> output) {
            long now = System.currentTimeMillis();
            if (now >= nextWatermarkMs) {
                nextWatermarkMs = now + settings.watermarkMs();
                long next = (done / blockRows * parallelism + share.index()) * blockRows
                        + done % blockRows;
                output.emitWatermark(new Watermark(events.timeMs(kind.id(next)) - 1));
            }
        }

        @Override
        public List<Share> snapshotState(long checkpoint) {
            return share == null ? List.of() : List.of(new Share(share.index(), done));
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return available;
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }
}
