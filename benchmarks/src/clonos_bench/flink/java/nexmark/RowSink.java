package nexmark;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.types.RowKind;

/**
 * Counts the rows that are left and, if there is a folder, writes them at once: a line with the kind of change, the
 * time of arrival, and the fields, times in ms.
 */
final class RowSink implements Sink<RowData> {
    private static final long serialVersionUID = 1L;

    private final RowData.FieldGetter[] fields;
    private final String folder;

    RowSink(RowData.FieldGetter[] fields, String folder) {
        this.fields = fields;
        this.folder = folder;
    }

    @Override
    public SinkWriter<RowData> createWriter(WriterInitContext context) throws IOException {
        int task = context.getTaskInfo().getIndexOfThisSubtask();
        OutputStream out =
                folder == null ? null : new FileOutputStream(folder + "/" + task + ".tsv", true);
        return new Writer(out);
    }

    private final class Writer implements SinkWriter<RowData> {
        private final OutputStream out;
        private boolean isFirst = true;
        private long rows;

        Writer(OutputStream out) {
            this.out = out;
        }

        @Override
        public void write(RowData row, Context context) throws IOException {
            if (isFirst) {
                isFirst = false;
                Gate.reached();
            }
            // What is left in the end: corrections of a row change nothing.
            if (row.getRowKind() == RowKind.INSERT) {
                rows++;
            } else if (row.getRowKind() == RowKind.DELETE) {
                rows--;
            }
            if (out != null) {
                out.write(line(row).getBytes(StandardCharsets.UTF_8));
            }
        }

        private String line(RowData row) {
            StringBuilder line = new StringBuilder();
            line.append(row.getRowKind().shortString());
            line.append('\t').append(System.currentTimeMillis());
            for (RowData.FieldGetter field : fields) {
                Object value = field.getFieldOrNull(row);
                if (value instanceof TimestampData) {
                    value = ((TimestampData) value).getMillisecond();
                }
                line.append('\t').append(value);
            }
            return line.append('\n').toString();
        }

        @Override
        public void flush(boolean isEnd) {
            if (isEnd) {
                Gate.ended(rows);
            }
        }

        @Override
        public void close() throws IOException {
            if (out != null) {
                out.close();
            }
        }
    }
}
