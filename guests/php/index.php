<?php
// A page that has to be computed: a small table, sorted, and a digest of it.
$n = isset($_GET['n']) ? max(1, min(1000, (int) $_GET['n'])) : 50;
$rows = [];
for ($i = 0; $i < $n; $i++) {
    $rows[] = ['id' => $i, 'key' => hash('sha256', "plover $i")];
}
usort($rows, fn($a, $b) => strcmp($a['key'], $b['key']));
echo "<html><body><table>\n";
foreach ($rows as $row) {
    echo "<tr><td>{$row['id']}</td><td>{$row['key']}</td></tr>\n";
}
echo '</table>', hash('sha256', json_encode($rows)), "</body></html>\n";
